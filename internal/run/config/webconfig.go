package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/words/remedy"
)

// WebConfig names a web configuration file of Prometheus' exporter toolkit.
type WebConfig struct {
	File  string   // empty: none
	Files []string // that it names; known if the loader reads it
}

// webPair are the cipher suites of which HTTP/2 needs one with TLS 1.2 (RFC 9113, section 9.2.2).
var webPair = []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}

const (
	// maxHashCost bounds the cost of a bcrypt hash: each step doubles its time, and this takes some 2 s.
	maxHashCost = 15
	maxBurst    = 1_000_000
	maxSpacing  = time.Hour

	webExample = "write tls_server_config: {cert_file: relay.pem, key_file: relay.key}"
)

// ReadWebConfig reads a web configuration file, and the files that it names, which are below its folder.
// Each is read at the result of readable for its path. The error is an [Errors]. No message has a secret.
func ReadWebConfig(path string, readable func(path string) string) (*webconfig.Settings, Errors, error) {
	root, err := parseFile(readable(path))
	if err != nil {
		if errs := (Errors)(nil); errors.As(err, &errs) && errs[0].Problem == emptyFile {
			errs[0].Fix = webExample // and not that of a configuration
		}
		return nil, nil, err
	}
	d := &webDecoder{decoder: decoder{keys: map[string][]string{}}, settings: webconfig.Default(), folder: filepath.Dir(path), readable: readable}
	d.settings.Files = []string{readable(path)}
	d.file(root)
	d.inOrder(d.errs)
	if len(d.errs) > 0 {
		return nil, d.warnings, d.errs
	}
	return d.settings, d.warnings, nil
}

// webDecoder decodes a web configuration file.
type webDecoder struct {
	decoder
	settings *webconfig.Settings
	folder   string
	readable func(path string) string
}

func (d *webDecoder) warn(n *node, fix, format string, args ...any) {
	d.warnings = append(d.warnings, &Error{n.at, oneLine(fmt.Sprintf(format, args...)), oneLine(fix)})
}

func (d *webDecoder) file(root *node) {
	s := d.settings
	d.mapping(root, "a web configuration",
		field{"tls_server_config", d.tls},
		field{"http_server_config", func(n *node) {
			d.mapping(n, "http_server_config", into("http2", &s.HTTP2, d.boolean), field{"headers", d.headers})
		}},
		field{"basic_auth_users", d.users},
		field{"rate_limit", func(n *node) {
			d.mapping(n, "rate_limit",
				into("interval", &s.Interval, d.duration(0, maxSpacing, nil)), into("burst", &s.Burst, d.integer(0, maxBurst)))
			if s.Interval > 0 && s.Burst == 0 {
				d.errorf(n, "add burst: 1, or remove it", "rate_limit with a burst of 0 refuses every request")
			}
		}},
	)
	suites := make([]string, len(s.CipherSuites))
	for i, id := range s.CipherSuites {
		suites[i] = tls.CipherSuiteName(id)
	}
	if len(suites) > 0 && s.HTTP2 && s.MinVersion < tls.VersionTLS13 &&
		!slices.ContainsFunc(webPair, func(name string) bool { return slices.Contains(suites, name) }) {
		d.errorf(root.lookup("tls_server_config").lookup("cipher_suites"), "add one of them, or write http_server_config: {http2: false}",
			"cipher_suites has neither %s, of which HTTP/2 needs one", strings.Join(webPair, " nor "))
	}
	if len(s.Users) > 0 && !s.TLS() && len(d.errs) == 0 {
		d.warn(root.lookup("basic_auth_users"), "add tls_server_config", "passwords cross the network in clear: there is no TLS")
	}
}

// headers decodes the headers of answers; an empty one is left out.
func (d *webDecoder) headers(n *node) {
	all := map[string]string{}
	header := func(key string, words ...string) field {
		return field{key, func(n *node) {
			value, ok := d.text(n, key)
			switch {
			case !ok || value == "":
			case len(words) > 0 && !slices.Contains(words, value):
				d.errorf(n, "use "+strings.Join(words, " or "), "%s cannot be %q", key, value)
			default:
				all[key] = value
			}
		}}
	}
	d.mapping(n, "headers", header("Content-Security-Policy"), header("X-Frame-Options", "deny", "sameorigin"),
		header("X-Content-Type-Options", "nosniff"), header("X-XSS-Protection"), header("Strict-Transport-Security"))
	d.settings.Headers = all
}

// users decodes names with the bcrypt hashes of their passwords.
func (d *webDecoder) users(n *node) {
	const fix = "make it with htpasswd -nBC 10 NAME, and write it in quotes"
	if n.kind != mapping {
		d.errorf(n, "write a line such as prometheus: '$2y$10$…' for each", "basic_auth_users must be a mapping, not %s", n.kind)
		return
	}
	d.settings.Users = map[string]string{}
	for _, e := range n.entries {
		name := e.key.text
		_, again := d.settings.Users[name]
		cost, err := 0, error(nil)
		if e.value.kind == scalar {
			cost, err = webconfig.HashCost(e.value.text)
		}
		switch {
		case again:
			d.errorf(e.key, "remove one", "the user %q is set twice", name)
		case name == "" || strings.Contains(name, ":"):
			d.errorf(e.key, "use a name without a colon (RFC 7617)", "a user cannot be %q", name)
		case e.value.kind != scalar, err != nil:
			d.errorf(e.value, fix, "the password of %q is not a bcrypt hash", name)
		case cost > maxHashCost:
			d.errorf(e.value, fix, "the hash of the password of %q has the cost %d, above %d: each check would take seconds", name, cost, maxHashCost)
		}
		d.settings.Users[name] = e.value.text
	}
}

// webText is a text of a web configuration: as it stands, or in a file.
type webText struct {
	at    *node // nil without the key
	text  []byte
	place string // for messages
}

// either makes the fields of a text that stands under key, or in the file under key_file.
func (d *webDecoder) either(key string, to *webText) []field {
	twice := func(n *node) bool {
		if to.at != nil {
			d.errorf(n, "leave one of them out", "there is %s and %[1]s_file", key)
		}
		return to.at != nil
	}
	return []field{
		{key, func(n *node) {
			if text, ok := d.text(n, key); ok && !twice(n) {
				*to = webText{n, []byte(text), key}
			}
		}},
		{key + "_file", func(n *node) {
			path, ok := d.text(n, key+"_file")
			if !ok || twice(n) {
				return
			}
			to.at = n
			if path == "" {
				d.errorf(n, "name a file in PEM form", "%s_file is empty", key)
				return
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(d.folder, path)
			}
			at := d.readable(path)
			text, err := readFile(at)
			if err != nil {
				d.fault(n, webconfig.Unreadable(strings.TrimPrefix(key, "client_"), at, err))
				return
			}
			d.settings.Files, d.settings.Named = append(d.settings.Files, at), append(d.settings.Named, path)
			*to = webText{n, text, at}
		}},
	}
}

// fault adds an error with its remedy.
func (d *webDecoder) fault(n *node, err error) {
	d.errorf(n, cmp.Or(remedy.Of(err), "check the path"), "%v", err)
}

var (
	clientAuth = map[string]tls.ClientAuthType{
		"NoClientCert": tls.NoClientCert, "RequestClientCert": tls.RequestClientCert,
		"RequireAnyClientCert": tls.RequireAnyClientCert, "RequireClientCert": tls.RequireAnyClientCert, // an older name
		"VerifyClientCertIfGiven": tls.VerifyClientCertIfGiven, "RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
	}
	tlsVersions = map[string]uint16{"TLS10": tls.VersionTLS10, "TLS11": tls.VersionTLS11, "TLS12": tls.VersionTLS12, "TLS13": tls.VersionTLS13}
	tlsCurves   = map[string]tls.CurveID{"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521, "X25519": tls.X25519}
)

// word decodes a word of a table.
func word[T any](d *webDecoder, table map[string]T) func(*node, string) (T, bool) {
	return func(n *node, key string) (value T, ok bool) {
		s, ok := d.text(n, key)
		if !ok {
			return value, false
		}
		if value, ok = table[s]; !ok {
			var known []string
			for name := range table {
				known = append(known, name)
			}
			slices.Sort(known)
			d.errorf(n, "use one of "+strings.Join(known, ", "), "%s cannot be %q", key, s)
		}
		return value, ok
	}
}

// words decodes a list of such words.
func words[T any](d *webDecoder, table map[string]T) func(*node, string) ([]T, bool) {
	return func(n *node, key string) ([]T, bool) {
		var all []T
		before := len(d.errs)
		d.each(n, key, func(n *node, _ string) {
			if v, ok := word(d, table)(n, key); ok {
				all = append(all, v)
			}
		})
		return all, len(d.errs) == before
	}
}

// tls decodes tls_server_config, and reads its files.
func (d *webDecoder) tls(n *node) {
	s := d.settings
	var cert, key, ca webText
	var preferred bool // read and not used, as in the toolkit: Go orders the suites by itself
	suites := map[string]uint16{}
	for _, c := range tls.CipherSuites() {
		suites[c.Name] = c.ID
	}
	before := len(d.errs)
	d.mapping(n, "tls_server_config", slices.Concat(
		d.either("cert", &cert), d.either("key", &key), d.either("client_ca", &ca),
		[]field{
			into("client_auth_type", &s.ClientAuth, word(d, clientAuth)),
			into("client_allowed_sans", &s.ClientNames, func(n *node, key string) (all []string, ok bool) {
				d.each(n, key, func(_ *node, s string) { all = append(all, s) })
				return all, true
			}),
			into("min_version", &s.MinVersion, word(d, tlsVersions)),
			into("max_version", &s.MaxVersion, word(d, tlsVersions)),
			into("cipher_suites", &s.CipherSuites, words(d, suites)),
			into("prefer_server_cipher_suites", &preferred, d.boolean),
			into("curve_preferences", &s.Curves, words(d, tlsCurves)),
		})...)
	if n.kind != mapping || len(d.errs) > before {
		return
	}
	for _, missing := range []struct {
		text webText
		key  string
	}{{cert, "cert_file"}, {key, "key_file"}} {
		if missing.text.at == nil {
			d.errorf(n, "add "+missing.key, "tls_server_config has no %s", missing.key)
			return
		}
	}
	var err error
	if s.Certificate, err = webconfig.ParseCertificate(cert.text, key.text, cert.place+" and "+key.place); err != nil {
		d.fault(key.at, err)
	}
	if ca.at != nil {
		if s.ClientCAs, err = webconfig.ParseAuthorities(ca.text, ca.place); err != nil {
			d.fault(ca.at, err)
		}
	}
	d.checkClients(n, ca.at != nil)
	if s.MinVersion > s.MaxVersion {
		d.errorf(n.lookup("min_version"), "lower min_version, or raise max_version", "min_version is above max_version")
	}
	if s.MinVersion < tls.VersionTLS12 {
		d.warn(n.lookup("min_version"), "use TLS12", "TLS 1.0 and 1.1 are not safe (RFC 8996)")
	}
	secret := d.settings.Files[0] // the web configuration itself
	if key.place != "key" {
		secret = key.place
	}
	if info, err := os.Stat(secret); err == nil && info.Mode().Perm()&0o007 != 0 {
		d.warn(key.at, "run chmod o= "+secret, "%s, which has the key, is open to every user of this host (mode %#o)", secret, info.Mode().Perm())
	}
}

// checkClients checks how clients are held against authorities. Without those of client_ca_file Go takes
// every certificate of an authority of the system.
func (d *webDecoder) checkClients(n *node, authorities bool) {
	s := d.settings
	at := cmp.Or(n.lookup("client_auth_type"), n)
	const strict = "RequireAndVerifyClientCert"
	switch {
	case s.ClientAuth == tls.RequireAndVerifyClientCert && !authorities:
		d.errorf(at, "add client_ca_file", "client_auth_type is %s without client_ca_file: anybody can have a certificate of the system's authorities", strict)
	case authorities && s.ClientAuth == tls.NoClientCert:
		d.errorf(at, "add client_auth_type: "+strict, "client_ca_file is set, and no client is asked for a certificate")
	case len(s.ClientNames) > 0 && s.ClientAuth != tls.RequireAndVerifyClientCert:
		d.errorf(at, "add client_auth_type: "+strict, "client_allowed_sans are set, and clients without a verified certificate are admitted")
	case s.ClientAuth == tls.RequestClientCert || s.ClientAuth == tls.RequireAnyClientCert:
		d.warn(at, "use "+strict, "certificates of clients are not verified: each can make its own")
	}
}

// webConfig decodes the path of a web configuration file, and reads it if the loader does.
func (d *decoder) webConfig(key string, to *WebConfig, check func(*webconfig.Settings) error) func(*node) {
	return func(n *node) {
		s, ok := d.text(n, key)
		switch {
		case !ok:
		case s == Off:
		case !filepath.IsAbs(s):
			d.errorf(n, "use an absolute path such as /etc/longhaul/web.yaml", "%s cannot be %q", key, s)
		case d.loader.WebConfig == nil:
			to.File = s
		default:
			settings, warnings, err := d.loader.WebConfig(s)
			d.warnings = append(d.warnings, warnings...)
			if errs := (Errors)(nil); errors.As(err, &errs) {
				d.errs = append(d.errs, errs...)
				return
			}
			if err == nil {
				*to = WebConfig{s, settings.Named}
				if check != nil {
					err = check(settings)
				}
			}
			if err != nil {
				d.errorf(n, cmp.Or(remedy.Of(err), "check the path"), "%v", err)
			}
		}
	}
}
