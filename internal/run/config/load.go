package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"longhaul/internal/carry/pair/trust"
	"longhaul/internal/carry/relay/names"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/words/portrange"
)

// Loader loads configurations. The zero value uses the system's resolver.
type Loader struct {
	// Resolve resolves the names in `listen`; nil means [SystemResolver].
	Resolve Resolver

	// FindService looks for the targets of a service; nil asks the system's name servers. Only
	// [Loader.Check] asks.
	FindService func(ctx context.Context, name string) error

	// CheckKey returns the problem of a key file and its fix; empty if the file
	// is valid. Nil skips the check.
	CheckKey func(path string) (problem, fix string)

	// CheckDashboard does the same for the certificate and the token of a
	// dashboard.
	CheckDashboard func(Dashboard) (problem, fix string)

	// WebConfig reads a web configuration file, such as with [ReadWebConfig]. Nil skips the check.
	WebConfig func(path string) (*webconfig.Settings, Errors, error)

	// CongestionControls lists the names of congestion controls that this host
	// can know. Another name is a mistake. Nil skips the check.
	CongestionControls func() []string

	// Elsewhere is set if the configuration may be meant for another host. An
	// unknown congestion control is then a warning.
	Elsewhere bool

	// OwnAddresses lists the addresses of this host's interfaces. A listening
	// wildcard accepts connections to them. Nil lists none.
	OwnAddresses func() []netip.Addr

	// HasAddress reports whether this host can listen on an address. [Loader.Check] warns of others.
	// Nil skips the check.
	HasAddress func(netip.Addr) bool

	// OutgoingPorts are those that this host's kernel gives to outgoing connections. [Loader.Check]
	// warns of listening ports among them.
	OutgoingPorts func() []portrange.Range

	// PeerKey returns why this host has no key of a peer, or nil. An empty directory is the usual
	// one. Nil skips the check.
	PeerKey func(dir, peer string) error

	// KeepsState reports whether a relay that loads a file has a directory of its own, as a service has.
	// Without one it keeps no history in no named file, and [Loader.Check] warns of sinks. Nil skips
	// the check.
	KeepsState func(file string) bool
	// CheckTrust returns why the files of a trust cannot be used, or its names clash with keys that
	// are pinned in a directory; and what may be intended. Nil skips the check.
	CheckTrust func(keysDir string, o trust.Options) (warnings []error, err error)
	// Root is the folder of an image whose configuration is loaded; included files are below it.
	Root string

	// NoIPv6 is set on a host without IPv6: an address without a host, such as
	// ":6000", then means IPv4 only.
	NoIPv6 bool
}

// Flag is a flag of the command line, with one or more values for a key.
type Flag struct {
	Name   string   // as the user writes it, such as "--listen"
	Key    string   // dotted, such as "log.format"; "tunnel." prefixes keys of the one tunnel
	Values []string // several become a list
}

// resolveTimeout bounds each lookup of a listening name.
const resolveTimeout = 5 * time.Second

// Load loads the file at path and those that it includes, overridden by flags, or the flags alone if path
// is empty. The error is an [Errors] with every mistake found.
func (l Loader) Load(ctx context.Context, path string, flags ...Flag) (*Config, error) {
	if path == "" {
		return l.decode(ctx, tree{root: fromFlags(flags)})
	}
	data, err := readMain(path)
	if err != nil {
		return nil, err
	}
	return l.Parse(ctx, path, data, flags...)
}

// parseFile reads a file. The error is an [Errors].
func parseFile(path string) (*node, error) {
	data, err := readMain(path)
	if err != nil {
		return nil, err
	}
	return parseText(path, data)
}

// readMain reads a file that a user has named. The error is an [Errors].
func readMain(path string) ([]byte, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, Errors{unreadable(Position{File: path}, err)}
	}
	return data, nil
}

// unreadable is the mistake of a file that cannot be read.
func unreadable(at Position, err error) *Error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	return &Error{at, fmt.Sprintf("cannot be read: %v", err), "check the path and its permissions"}
}

// parseText parses the content of a file. The error is an [Errors].
func parseText(path string, data []byte) (*node, error) {
	root, fault := parseYAML(path, bytes.TrimPrefix(data, []byte("\ufeff")))
	if fault != nil {
		return nil, Errors{fault}
	}
	return root, nil
}

// Read reads a file and those that it includes, as Load does. The error is an [Errors]; the files come
// with it if all could be read.
func (l Loader) Read(path string) (Files, error) {
	data, err := readMain(path)
	if err != nil {
		return nil, err
	}
	t, err := l.include(path, data)
	return t.files, err
}

// Check loads a file, and those that it includes, that may be for another host. It returns the warnings
// of a file with mistakes, too, and warns of what this host lacks for the file.
func (l Loader) Check(ctx context.Context, path string) (c *Config, warnings Errors, err error) {
	l.Elsewhere = true
	data, err := readMain(path)
	if err != nil {
		return nil, nil, err
	}
	t, err := l.include(path, data)
	if err != nil {
		return nil, nil, err
	}
	d := l.decoder(ctx, t)
	d.onHost = true
	loaded := d.config(t.root)
	if len(d.errs) > 0 {
		return nil, d.warnings, d.errs
	}
	return &loaded, d.warnings, nil
}

// Parse is Load for the content of a file. It reads what the file includes.
func (l Loader) Parse(ctx context.Context, path string, data []byte, flags ...Flag) (*Config, error) {
	t, err := l.include(path, data)
	if err != nil {
		return nil, err
	}
	t.overlay(flags)
	return l.decode(ctx, t)
}

// ParseFiles is Load for the contents of files that a configuration was read from.
func (l Loader) ParseFiles(ctx context.Context, files Files, flags ...Flag) (*Config, error) {
	t, err := parseFiles(files)
	if err != nil {
		return nil, err
	}
	t.overlay(flags)
	return l.decode(ctx, t)
}

// readFile reads at most one byte more than the bound.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

func (l Loader) decode(ctx context.Context, t tree) (*Config, error) {
	d := l.decoder(ctx, t)
	c := d.config(t.root)
	if len(d.errs) > 0 {
		return nil, d.errs
	}
	return &c, nil
}

// decoder decodes a tree. It begins with the mistakes of putting it together.
func (l Loader) decoder(ctx context.Context, t tree) *decoder {
	if l.Resolve == nil {
		l.Resolve = SystemResolver
	}
	if l.FindService == nil {
		l.FindService = func(ctx context.Context, name string) error {
			found, err := names.LookupService(ctx, net.DefaultResolver, name)
			if err == nil && len(found) == 0 {
				err = errors.New("its SRV records lead nowhere")
			}
			return err
		}
	}
	return &decoder{ctx: ctx, loader: l, keys: map[string][]string{}, errs: t.faults, warnings: t.warnings, files: t.files}
}

// mainTunnel is the name of a command line's one tunnel.
const mainTunnel = "main"

// fromFlags builds the tree of a file with the same settings.
func fromFlags(flags []Flag) *node {
	root := &node{kind: mapping, at: Position{Flag: "command line"}}
	var tunnel *node
	for _, f := range flags {
		at := Position{Flag: f.Name}
		parent, key := root, f.Key
		if rest, ok := strings.CutPrefix(key, "tunnel."); ok {
			if tunnel == nil {
				tunnel = &node{kind: mapping, at: at}
				root.set("tunnels", &node{kind: list, items: []*node{tunnel}, at: at})
				tunnel.set("name", &node{kind: scalar, text: mainTunnel, at: at})
			}
			parent, key = tunnel, rest
		}
		for {
			head, rest, nested := strings.Cut(key, ".")
			if !nested {
				break
			}
			child := parent.lookup(head)
			if child == nil {
				child = &node{kind: mapping, at: at}
				parent.set(head, child)
			}
			parent, key = child, rest
		}
		value := &node{kind: list, at: at}
		for _, v := range f.Values {
			value.items = append(value.items, &node{kind: scalar, text: v, at: at})
		}
		if len(value.items) == 1 {
			value = value.items[0]
		}
		parent.set(key, value)
	}
	return root
}

func (n *node) set(key string, value *node) {
	n.entries = append(n.entries, entry{&node{kind: scalar, text: key, at: value.at}, value})
}

// checkText finds bytes that are not UTF-8.
func checkText(file string, number int, line []byte) *Error {
	for i := 0; i < len(line); {
		r, size := utf8.DecodeRune(line[i:])
		if r == utf8.RuneError && size == 1 {
			return &Error{Position{File: file, Line: number, Column: i + 1}, fmt.Sprintf("byte 0x%02x is not UTF-8 text", line[i]), "save the file as UTF-8"}
		}
		i += size
	}
	return nil
}
