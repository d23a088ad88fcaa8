package webconfig

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"longhaul/internal/sys/connsource"
)

// Handler admits requests to next as the settings say: their rate, their certificates and their users.
// current is the guard of the moment; nil admits all. A request ends when the settings in force would no
// longer admit it.
func Handler(current func() *Guard, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := current()
		if g == nil {
			next.ServeHTTP(w, r)
			return
		}
		s := g.Current()
		if !g.requests.take(s.Interval, s.Burst) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		for k, v := range s.Headers {
			w.Header().Set(k, v)
		}
		// The handshake may have had other settings.
		if err := s.checkClient(r.TLS); err != nil {
			http.Error(w, "this server asks for a client certificate: "+err.Error(), http.StatusUnauthorized)
			return
		}
		if len(s.Users) == 0 {
			(&admission{tls: r.TLS}).serve(w, r, current, next)
			return
		}
		user, password, _ := r.BasicAuth()
		switch ok, checked := g.passwords.right(r, s.Users, user, password); {
		case ok:
			(&admission{r.TLS, user, s.Users[user]}).serve(w, r, current, next)
		case !checked:
			http.Error(w, "too many wrong passwords", http.StatusTooManyRequests)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="longhaul", charset="UTF-8"`)
			http.Error(w, "this server asks for a user and a password", http.StatusUnauthorized)
		}
	})
}

// admission is what a request was admitted with.
type admission struct {
	tls        *tls.ConnectionState
	user, hash string // empty: no password was asked for
}

// lookInterval is how often a request that goes on has the files looked at, if nothing else does.
const lookInterval = 10 * time.Second

// serve serves the request until the settings in force no longer admit it.
func (a *admission) serve(w http.ResponseWriter, r *http.Request, current func() *Guard, next http.Handler) {
	ctx, cancel := context.WithCancel(r.Context())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		timer := time.NewTicker(lookInterval)
		defer timer.Stop()
		for g := current(); g != nil; g = current() {
			s, changed := g.state()
			if !a.holds(s) {
				cancel()
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-timer.C:
			}
		}
	})
	next.ServeHTTP(w, r.WithContext(ctx))
}

// holds reports whether settings admit the request.
func (a *admission) holds(s *Settings) bool {
	return s.checkClient(a.tls) == nil && (len(s.Users) == 0 || a.hash != "" && s.Users[a.user] == a.hash)
}

// bucket is a token bucket; the zero value is full.
type bucket struct {
	mu   sync.Mutex
	debt time.Duration // of tokens taken, at last
	last time.Time
}

// take takes a token, of which one comes each interval, up to burst of them. An interval of 0 is no limit.
func (b *bucket) take(interval time.Duration, burst int) bool {
	if interval <= 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.debt = max(0, b.debt-now.Sub(b.last))
	b.last = now
	if b.debt+interval > time.Duration(burst)*interval {
		return false
	}
	b.debt += interval
	return true
}

const (
	// wrongPause is the time from a wrong password to the next check for its source, which waits.
	wrongPause = time.Second
	// maxWait bounds that wait, below the time for an answer.
	maxWait = 10 * time.Second
	// maxWrong bounds the sources that wait. A hash takes tens of milliseconds, so fewer come in a pause.
	maxWrong = 256
)

// passwords checks passwords. To hash one takes tens of milliseconds of CPU time, which anybody can ask
// for: so one is hashed at a time, a source that was wrong waits, and the right ones are remembered.
type passwords struct {
	hashing sync.Mutex // held while a password is hashed

	mu    sync.Mutex
	key   []byte                   // of known, made with the first
	known map[string][]byte        // the MAC of a user's last right password and its hash, by name
	wrong map[netip.Addr]time.Time // the end of each source's pause
}

// right reports whether a user of users has a password, and whether it came to that: others of its source
// may be wrong too often, or the client goes away.
func (p *passwords) right(r *http.Request, users map[string]string, user, password string) (ok, checked bool) {
	if user == "" && password == "" {
		return false, true
	}
	hash, isUser := users[user]
	sum := p.sum(hash, password)
	p.mu.Lock()
	known := isUser && hmac.Equal(p.known[user], sum)
	p.mu.Unlock()
	if known {
		return true, true
	}
	if !isUser { // takes as long as that of a user
		hash = costliest(users)
	}
	source := sourceOf(r)
	if !p.turn(r.Context(), source) {
		return false, false
	}
	defer p.hashing.Unlock()
	ok = bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil && isUser
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok {
		p.remember(users, user, sum)
		return true, true
	}
	p.pause(source)
	return false, true
}

// turn waits for the end of a source's pause, and takes the lock of hashing; false: it came to neither.
func (p *passwords) turn(ctx context.Context, source netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for {
		p.hashing.Lock()
		p.mu.Lock()
		wait := time.Until(p.wrong[source])
		p.mu.Unlock()
		if wait <= 0 && ctx.Err() == nil {
			return true
		}
		p.hashing.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// sum is the MAC of a password with the hash that it was held against.
func (p *passwords) sum(hash, password string) []byte {
	p.mu.Lock()
	if p.key == nil {
		p.key = make([]byte, sha256.Size)
		rand.Read(p.key)
	}
	m := hmac.New(sha256.New, p.key)
	p.mu.Unlock()
	m.Write([]byte(hash)) // of a fixed length
	m.Write([]byte(password))
	return m.Sum(nil)
}

// remember notes a right password, and forgets those of users that are gone. The caller holds mu.
func (p *passwords) remember(users map[string]string, user string, sum []byte) {
	for name := range p.known {
		if _, is := users[name]; !is {
			delete(p.known, name)
		}
	}
	if p.known == nil {
		p.known = map[string][]byte{}
	}
	p.known[user] = sum
}

// pause begins the pause of a source. The caller holds mu.
func (p *passwords) pause(source netip.Addr) {
	now := time.Now()
	for other, until := range p.wrong {
		if now.After(until) || len(p.wrong) >= maxWrong {
			delete(p.wrong, other)
		}
	}
	if p.wrong == nil {
		p.wrong = map[netip.Addr]time.Time{}
	}
	p.wrong[source] = now.Add(wrongPause)
}

// costliest is the hash of a user that takes longest.
func costliest(users map[string]string) (hash string) {
	most := -1
	for _, h := range users {
		if cost, err := bcrypt.Cost([]byte(h)); err == nil && cost > most {
			hash, most = h, cost
		}
	}
	return hash
}

// HashCost is the cost of a bcrypt hash; each step doubles the time of a check.
func HashCost(hash string) (int, error) { return bcrypt.Cost([]byte(hash)) }

func sourceOf(r *http.Request) netip.Addr {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return connsource.OfAddr(remote.Addr())
}
