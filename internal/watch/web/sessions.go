package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	sessionTime = 12 * time.Hour
	// maxSessions bounds the sessions left behind by scripts that log in for
	// each request.
	maxSessions = 1000
)

// Token is the secret of the readers, with the sessions that began with it.
// Replacing the secret ends them.
type Token struct {
	mu       sync.Mutex
	secret   string          // empty: admits nobody
	inForce  context.Context // ends when another secret replaces this one
	replace  context.CancelFunc
	sessions map[sessionKey]session
}

// sessionKey is the digest of a session's id, so that the time of a lookup
// reveals nothing about the ids.
type sessionKey [sha256.Size]byte

// session ends by a logout, after sessionTime, or with the secret.
type session struct {
	context.Context
	end context.CancelFunc
}

// NewToken makes a token with a secret.
func NewToken(secret string) *Token {
	t := &Token{secret: secret, sessions: map[sessionKey]session{}}
	t.inForce, t.replace = context.WithCancel(context.Background())
	return t
}

// Set replaces the secret. A new secret ends all sessions, and all running
// answers to readers with the old one.
func (t *Token) Set(secret string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if secret == t.secret {
		return
	}
	t.replace()
	t.inForce, t.replace = context.WithCancel(context.Background())
	t.secret = secret
	clear(t.sessions)
}

// admit checks the token or the session of a request. The context ends with it.
func (t *Token) admit(r *http.Request) (context.Context, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return t.inForce, t.is(given)
	}
	key, ok := sessionOf(r)
	s, known := t.sessions[key]
	return s.Context, ok && known && s.Err() == nil
}

// login begins a session if the secret is right, and returns its id.
func (t *Token) login(given string) (id string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.is(given) {
		return "", false
	}
	t.makeRoom()
	id = rand.Text()
	var s session
	s.Context, s.end = context.WithTimeout(t.inForce, sessionTime)
	t.sessions[sha256.Sum256([]byte(id))] = s
	return id, true
}

// makeRoom removes sessions that have ended, and the oldest one if the table is
// full.
func (t *Token) makeRoom() {
	var oldest sessionKey
	var ends time.Time
	for key, s := range t.sessions {
		if s.Err() != nil {
			delete(t.sessions, key)
			continue
		}
		if at, _ := s.Deadline(); ends.IsZero() || at.Before(ends) {
			oldest, ends = key, at
		}
	}
	if len(t.sessions) >= maxSessions {
		t.sessions[oldest].end()
		delete(t.sessions, oldest)
	}
}

// logout ends the session of a request.
func (t *Token) logout(r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, _ := sessionOf(r)
	if s, ok := t.sessions[key]; ok {
		s.end()
		delete(t.sessions, key)
	}
}

func sessionOf(r *http.Request) (key sessionKey, ok bool) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return key, false
	}
	return sha256.Sum256([]byte(c.Value)), true
}

// is compares in a time that reveals nothing about the secret or its length.
func (t *Token) is(given string) bool {
	x, y := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(t.secret))
	return t.secret != "" && subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
