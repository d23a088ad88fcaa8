package daemon

import (
	"context"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"longhaul/internal/sys/httpd"
)

const (
	fullNamePatience = time.Second
	fullNameEvery    = time.Minute // at most, against floods of made-up names
)

// httpNames are the host names for which http_listen answers with details: those of
// the configuration, this machine's, and those of the certificate.
type httpNames struct {
	configured atomic.Pointer[[]string]
	certified  func(name string) bool // whether the certificate has a name

	mu     sync.Mutex
	full   string // this machine's name with its domain, last result
	looked time.Time
}

func (n *httpNames) set(names []string) { n.configured.Store(&names) }

// asked reports whether a request names this server.
func (n *httpNames) asked(r *http.Request) bool { return httpd.Names{Name: n.has}.Has(r.Host) }

func (n *httpNames) has(name string) bool {
	if names := n.configured.Load(); names != nil && slices.Contains(*names, name) || n.certified != nil && n.certified(name) {
		return true
	}
	host, err := os.Hostname()
	if err != nil {
		return false
	}
	host = strings.ToLower(host)
	short, _, _ := strings.Cut(host, ".")
	if name == host || name == short {
		return true
	}
	// Resolve the full name only if the request may name it.
	first, _, _ := strings.Cut(name, ".")
	return first == short && name == n.fullName(host)
}

// fullName returns the resolver's name of this machine, like `hostname -f`.
func (n *httpNames) fullName(host string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.looked.IsZero() || time.Since(n.looked) >= fullNameEvery {
		ctx, cancel := context.WithTimeout(context.Background(), fullNamePatience)
		defer cancel()
		if full, err := net.DefaultResolver.LookupCNAME(ctx, host); err == nil {
			n.full = strings.ToLower(strings.TrimSuffix(full, "."))
		}
		n.looked = time.Now()
	}
	return n.full
}

// guard refuses requests for another server's name.
func (n *httpNames) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !n.asked(r) {
			http.Error(w, "this server has another name: use its address, localhost or this machine's name, or add the name to http_names", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
