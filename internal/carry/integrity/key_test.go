package integrity

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"longhaul/internal/words/remedy"
)

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	key := NewKey()
	if err := key.Create(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	got, err := LoadKeys(path)
	if err != nil || got != (Keys{First: key}) {
		t.Errorf("got another key, %v", err)
	}
	if err := NewKey().Create(path); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a key file is written over: %v", err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660, 0o602, 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		var bad *remedy.Error
		if _, err := LoadKeys(path); !errors.As(err, &bad) || !strings.Contains(bad.Error(), "open to others") || !strings.Contains(bad.Fix, "chmod 600 "+path) {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
}

func TestKeyFileMistakes(t *testing.T) {
	secret := base64.RawURLEncoding.EncodeToString(make([]byte, secretBytes-1))
	good := keyPrefix + base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("k", secretBytes)))
	second := keyPrefix + base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("s", secretBytes)))
	for text, want := range map[string]string{
		"":                                 "no line begins with",
		"# nothing\n":                      "no line begins with",
		"secret":                           "a line begins with neither",
		keyPrefix + secret:                 "is not 32 bytes",
		keyPrefix + "%%%":                  "is not 32 bytes",
		good + "\n" + good:                 "the same key twice",
		good + "\n" + second + "\n" + good: "more than two keys",
		strings.Repeat("#", 5e3):           "more than 4096 bytes",
	} {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var bad *remedy.Error
		if _, err := LoadKeys(path); !errors.As(err, &bad) || !strings.Contains(bad.Error(), want) || bad.Fix == "" {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
	for path, want := range map[string]string{
		"/nonexistent/key": "there is no key file",
		t.TempDir():        "is not a regular file",
	} {
		if _, err := LoadKeys(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if keys, err := parseKeys([]byte(second + "\n# comment\n" + good)); err != nil || keys.First.secret[0] != 's' || keys.Second.secret[0] != 'k' {
		t.Errorf("two keys in a file: %v", err)
	}
	if _, err := parseKeys([]byte("# comment\n\n  " + good + "  \r\n")); err != nil {
		t.Error(err)
	}
}

func TestKeyIsNotTold(t *testing.T) {
	key := NewKey()
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", key, "in", Server{Keys: Keys{First: key}})
	for _, text := range []string{fmt.Sprint(key), fmt.Sprintf("%v %+v %#v %s", key, key, key, key), fmt.Sprintf("%+v", Server{Keys: Keys{First: key}}), log.String()} {
		if strings.Contains(text, fmt.Sprint(key.secret[:4])[1:10]) || strings.Contains(text, fmt.Sprintf("%x", key.secret[:4])) || !strings.Contains(text, "secret") {
			t.Errorf("told: %s", text)
		}
	}
}
