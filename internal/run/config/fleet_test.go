package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"longhaul/internal/words/remedy"
)

// inventory loads an inventory of this text, and returns its folder.
func inventory(t *testing.T, text string, checks FleetChecks, flags ...Flag) (folder string, fleet *Fleet, err error) {
	t.Helper()
	folder = t.TempDir()
	file := filepath.Join(folder, "relays.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fleet, err = LoadFleet(file, checks, flags...)
	return folder, fleet, err
}

func TestInventory(t *testing.T) {
	folder, got, err := inventory(t, `
token_file: relays.token
ca: /etc/ssl/relays.pem
relays:
  - {name: relay-a, url: "https://relay-a.example.net:9464/", token_file: a.token, cert: own.pem, key: own.key, timeout: 3s}
  - https://relay-b.example.net:9464
  - url: http://127.0.0.1:9464
`, FleetChecks{}, Flag{"--timeout", "timeout", []string{"2"}})
	if err != nil {
		t.Fatal(err)
	}
	usual := FleetRelay{TokenFile: folder + "/relays.token", CA: "/etc/ssl/relays.pem", Timeout: 2 * time.Second}
	want := &Fleet{Usual: usual, Relays: []FleetRelay{
		{"relay-a", "https://relay-a.example.net:9464", folder + "/a.token", usual.CA, folder + "/own.pem", folder + "/own.key", 3 * time.Second},
		{"relay-b.example.net", "https://relay-b.example.net:9464", usual.TokenFile, usual.CA, "", "", 2 * time.Second},
		{"127.0.0.1", "http://127.0.0.1:9464", "", "", "", "", 2 * time.Second},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	// A list is one of relays alone.
	_, got, err = inventory(t, "- https://[2001:db8::1]:9464\n", FleetChecks{}, Flag{"--token-file", "token_file", []string{"t"}})
	if err != nil || len(got.Relays) != 1 || got.Relays[0] != (FleetRelay{"2001:db8::1", "https://[2001:db8::1]:9464", "t", "", "", "", usualFleetWait}) {
		t.Errorf("got %+v, %v", got, err)
	}
	// Without a file there are flags.
	got, err = LoadFleet("", FleetChecks{}, Flag{"--ca", "ca", []string{"/ca.pem"}})
	if err != nil || len(got.Relays) > 0 || got.Usual != (FleetRelay{CA: "/ca.pem", Timeout: usualFleetWait}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMistakesInAnInventory(t *testing.T) {
	const one = "- https://a:1\n"
	checks := FleetChecks{Token: func(path string) error {
		return remedy.New(fmt.Errorf("the token file %s is open to others", filepath.Base(path)), "run chmod 600")
	}}
	for text, want := range map[string]string{
		"":                               "1:1: the file is empty; " + fleetHint,
		"ca: x\n":                        "1:1: the inventory has no relays; " + fleetHint,
		"relays: []\n":                   "1:9: relays is an empty list; " + fleetHint,
		"relays: {a: b}\n":               "1:9: relays must be a list, not a mapping; write a dash before each relay",
		"https://a:1\n":                  "1:1: an inventory must be a mapping, not a single value; write one of its keys below it: token_file, ca, cert, key, timeout, relays",
		"token: x\nrelays:\n" + one:      "1:1: unknown key token in an inventory; did you mean token_file?",
		"token_file: t\nrelays:\n" + one: "1:13: the token file t is open to others; run chmod 600",
		"timeout: 1h\nrelays:\n" + one:   "1:10: timeout cannot be 1h; use 50ms to 1m",
		"- {name: a}\n":                  "1:3: the relay has no url; add url: https://relay-a.example.net:9464",
		"- {name: a, url: }\n":           "1:13: url has no value; give it one, or remove the line",
		"- {name: \"a\\tb\", url: \"https://a:1\"}\n": `1:10: name cannot be "a\tb"; write up to 64 letters, such as relay-a`,
		"- ftp://a:1\n":                                    `1:3: url cannot be "ftp://a:1"; write it like https://relay-a.example.net:9464`,
		"- https://a:1/path\n":                             `1:3: url cannot be "https://a:1/path"; write it like https://relay-a.example.net:9464`,
		"- https://u:secret@a:1\n":                         "1:3: url has a user or a password in it; leave it out, and name the file of the token: token_file: /etc/longhaul/relay-a.token",
		"- http://relay-a:9464\n":                          "1:3: url http://relay-a:9464 leads to another host without TLS; write https://; a dashboard without TLS answers only on its own host",
		one + "- https://a:2\n":                            "2:3: two relays have the name a, the other is on line 1; give each a name: {name: relay-a, url: …}",
		"relays:\n" + strings.Repeat("  "+one, maxFleet+1): "2:3: the inventory has 1001 relays, and at most 1000 are asked; make several inventories",
	} {
		folder, _, err := inventory(t, text, checks)
		checkErrors(t, err)
		if got := err.Error(); got != folder+"/relays.yaml:"+want {
			t.Errorf("%.60q:\n got %s\nwant %s", text, strings.TrimPrefix(got, folder+"/relays.yaml:"), want)
		}
	}
	_, _, err := inventory(t, "- {url: \"http://localhost:9464\", token_file: t}\n", FleetChecks{})
	if err == nil || !strings.HasSuffix(err.Error(), "the token would be sent in clear to http://localhost:9464; write https://, or leave token_file out") {
		t.Errorf("a token in clear: %v", err)
	}
	var errs Errors
	if _, err := LoadFleet("/none", checks); !errors.As(err, &errs) || err.Error() != "/none: cannot be read: no such file or directory; check the path and its permissions" {
		t.Errorf("a missing file: %v", err)
	}
}
