package measure

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"longhaul/internal/words/remedy"
)

// Token is a name and a secret that a client and a server share. The client
// shows that it has the secret by its HMAC-SHA256 (RFC 2104) over what the
// server has just made up for it, so that neither the secret nor anything that
// serves a second time crosses the network.
type Token struct {
	Name   string
	Secret string
}

// Bounds of tokens. Whoever hears an answer can try secrets against it, so that
// a short one would be found.
const (
	maxTokens     = 1000
	maxTokenName  = 64
	minSecret     = 16 // bytes
	maxSecret     = 256
	maxTokenBytes = 1 << 20 // of a file
)

// ReadTokens reads a list: a token a line, its name, space, and its secret.
// Empty lines and those that begin with # say nothing.
func ReadTokens(r io.Reader) ([]Token, error) {
	var tokens []Token
	seen := map[string]bool{}
	lines := bufio.NewScanner(io.LimitReader(r, maxTokenBytes))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d is not a name and a secret", n)
		}
		t := Token{fields[0], fields[1]}
		switch {
		case !goodTokenName(t.Name):
			return nil, fmt.Errorf("line %d: a name has up to %d letters, digits, dots, dashes and underscores", n, maxTokenName)
		case len(t.Secret) < minSecret || len(t.Secret) > maxSecret:
			return nil, fmt.Errorf("line %d: the secret of %s has %d bytes: use %d to %d", n, t.Name, len(t.Secret), minSecret, maxSecret)
		case seen[t.Name]:
			return nil, fmt.Errorf("line %d: there is another %s", n, t.Name)
		case len(tokens) == maxTokens:
			return nil, fmt.Errorf("more than %d tokens", maxTokens)
		}
		seen[t.Name] = true
		tokens = append(tokens, t)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, errors.New("missing token")
	}
	return tokens, nil
}

// ReadTokenFile reads the list in a file, which must be its owner's alone.
func ReadTokenFile(path string) ([]Token, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, remedy.New(fmt.Errorf("%s has secrets, and others may read it", path), "chmod 600 "+path)
	}
	tokens, err := ReadTokens(file)
	if err != nil {
		return nil, remedy.New(fmt.Errorf("%s: %w", path, err), "write a name and a secret on a line; openssl rand -hex 16 makes one")
	}
	return tokens, nil
}

func goodTokenName(name string) bool {
	for _, b := range []byte(name) {
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && !strings.ContainsRune("._-", rune(b)) {
			return false
		}
	}
	return name != "" && len(name) <= maxTokenName
}

// challenge is what a server makes up for each connection that is to show a
// token.
type challenge [32]byte

// answer is what shows the secret. The cookie ties it to the test's other
// connections, and the text to this use of the secret.
func (t Token) answer(c challenge, k cookie) []byte {
	mac := hmac.New(sha256.New, []byte(t.Secret))
	mac.Write([]byte("longhaul measure 1\x00"))
	mac.Write(c[:])
	mac.Write(k[:])
	return mac.Sum(nil)
}

// Errors of tokens.
var (
	errNoToken    = errors.New("it shows no token, and --tokens wants one")
	errWrongToken = errors.New("its token is none of --tokens")
)

// askForToken has the client of a connection show one of the server's tokens.
func (s *Server) askForToken(control io.ReadWriter, k cookie, p Parameters) (name string, err error) {
	if p.Longhaul == nil || p.Longhaul.Token == "" {
		return "", errNoToken
	}
	// A name that is not there is answered like one that is, with a secret
	// that nobody has.
	token := Token{Secret: rand.Text()}
	for _, t := range s.Tokens {
		if t.Name == p.Longhaul.Token {
			token = t
		}
	}
	var c challenge
	_, _ = rand.Read(c[:]) // never fails
	if _, err := control.Write(append([]byte{byte(showToken)}, c[:]...)); err != nil {
		return "", err
	}
	var answer [sha256.Size]byte
	if _, err := io.ReadFull(control, answer[:]); err != nil {
		return "", err
	}
	if !hmac.Equal(answer[:], token.answer(c, k)) || token.Name == "" {
		return "", errWrongToken
	}
	return token.Name, nil
}

// showToken answers a server that asks.
func (c *client) showToken() error {
	var asked challenge
	if _, err := io.ReadFull(c.control, asked[:]); err != nil {
		return fmt.Errorf("waiting for the other side's next step: %w", err)
	}
	_, err := c.control.Write(c.options.Token.answer(asked, c.cookie))
	return err
}
