package web

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/words/remedy"
)

const (
	maxTokenFile = 4096
	minToken     = 20 // characters

	// credentials is the folder in which systemd puts the files of
	// LoadCredential=. An access control list admits the service's user; it
	// shows as the group's bits.
	credentials = "/run/credentials/"
)

// ReadToken reads the token, the only line of a file. The error is a
// [*remedy.Error].
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", unreadable(path, err)
	}
	others := fs.FileMode(0o077)
	if strings.HasPrefix(path, credentials) {
		others = 0o007
	}
	switch {
	case !info.Mode().IsRegular():
		return "", remedy.New(errors.New("the token file "+path+" is not a regular file"),
			"name the file with the token")
	case info.Mode()&others != 0:
		return "", remedy.New(fmt.Errorf("the token file %s is open to others (mode %#o)", path, info.Mode().Perm()),
			"run chmod 600 "+path+"; if others could read it meanwhile, make a new token")

	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return "", unreadable(path, err)
	}
	token := strings.TrimSpace(string(text))
	const fix = "make one with: openssl rand -hex 32"
	switch {
	case len(text) > maxTokenFile || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", remedy.New(errors.New("the token file "+path+" has more than one word of ASCII"), fix)
	case len(token) < minToken:
		return "", remedy.New(fmt.Errorf("the token in %s has fewer than %d characters, which can be guessed", path, minToken), fix)
	}
	return token, nil
}

// unreadable is the error of a token's file that cannot be read.
func unreadable(path string, err error) error {
	why := webconfig.Unreadable("token", path, err)
	if errors.Is(err, fs.ErrNotExist) {
		return remedy.New(why, "make one with: (umask 077; openssl rand -hex 32 > "+path+")")
	}
	return why
}
