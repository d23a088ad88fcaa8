package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"longhaul/internal/words/flagvalue"
	"longhaul/lab/hosts"
)

// HostECN is the use of ECN by the TCP of the lab's hosts. The zero value leaves the
// kernel's default, which is HostECNAccept unless the machine's kernel was built
// otherwise.
type HostECN uint8

// The uses of ECN.
const (
	HostECNDefault HostECN = iota
	HostECNOff
	HostECNOn       // request it, and accept requests (RFC 3168)
	HostECNAccept   // accept requests only
	HostECNAccurate // request and accept accurate ECN (RFC 9768); Linux 6.18 refuses it still
)

var hostECNNames = []string{HostECNDefault: "default", HostECNOff: "off", HostECNOn: "on", HostECNAccept: "accept", HostECNAccurate: "accurate"}

// HostECNNames returns the names of the uses of ECN.
func HostECNNames() []string { return slices.Clone(hostECNNames) }

func (e HostECN) String() string { return hostECNNames[e] }

// ecnSysctl is the setting of TCP's use of ECN in a network namespace.
const ecnSysctl = "net.ipv4.tcp_ecn"

// sysctls are the settings of a host.
func (e HostECN) sysctls() []Sysctl {
	switch e {
	case HostECNOff:
		return []Sysctl{{ecnSysctl, "0"}}
	case HostECNOn:
		return []Sysctl{{ecnSysctl, "1"}}
	case HostECNAccept:
		return []Sysctl{{ecnSysctl, "2"}}
	case HostECNAccurate:
		return []Sysctl{{ecnSysctl, "3"}}
	}
	return nil
}

// Flag adds --host-ecn.
func (e *HostECN) Flag(flags *pflag.FlagSet) {
	flagvalue.Add(flags, "ECN", "host-ecn", "ECN of the hosts: on, off, accept, accurate or default", "default", func(s string) error {
		i := slices.Index(hostECNNames, s)
		if i < 0 {
			return fmt.Errorf("invalid use of ECN %q: choose from %s", s, strings.Join(hostECNNames, ", "))
		}
		*e = HostECN(i)
		return nil
	})
}

// SetHostECN changes the use of ECN on all hosts, for new connections. The default
// changes nothing.
func (l *Lab) SetHostECN(e HostECN) error {
	for _, h := range l.hosts {
		for _, s := range e.sysctls() {
			if err := setSysctl(h, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func setSysctl(h *hosts.Host, s Sysctl) error {
	err := h.Sysctl(s.Name, s.Value)
	if s.Name == ecnSysctl && errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: this kernel has no accurate ECN, choose --host-ecn on", err)
	}
	return err
}
