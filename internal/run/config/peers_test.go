package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"longhaul/internal/carry/pair/identity"
)

// peerKey returns a valid key; text that longhaul pair key prints ends in a sum.
func peerKey(n byte) identity.PublicKey { return identity.PublicKey{n, 2, 3} }

// TestPeersAreReadAsWritten holds that a list of peers that longhaul writes is read the same.
func TestPeersAreReadAsWritten(t *testing.T) {
	var wanted []identity.Wanted
	text := "# a comment\n"
	for i, name := range []string{"site-a", "site-b/b1", "site-b/b2", "9", "0x1", "true", "null", "Null/x", "1e3", "a.b_c-d", "no", "y"} {
		w := identity.Wanted{Name: name, Keys: []identity.PublicKey{peerKey(byte(3*i + 1))}}
		if i%2 == 1 {
			w.Keys = append(w.Keys, peerKey(byte(3*i+2)))
		}
		wanted = append(wanted, w)
		text += FormatPeer(w)
	}
	for _, text := range []string{text, strings.ReplaceAll(text, "\n", "\r\n"), "\ufeff" + text, "---\n" + text} {
		got, err := ReadPeers("peers.yaml", strings.NewReader(text))
		if err != nil || !reflect.DeepEqual(got, wanted) {
			t.Errorf("%q is read as %v, %v", text, got, err)
		}
	}
	inBrackets := "b: [" + peerKey(1).String() + ", " + peerKey(2).String() + "]\n"
	if got, err := ReadPeers("peers.yaml", strings.NewReader(inBrackets)); err != nil || len(got) != 1 || len(got[0].Keys) != 2 {
		t.Errorf("%q is read as %v, %v", inBrackets, got, err)
	}
}

func TestPeersMistakes(t *testing.T) {
	key, key2 := peerKey(1).String(), peerKey(2).String()
	newer := strings.Replace(key, "key-1:", "key-2:", 1)
	for text, want := range map[string]string{
		"":                             "1:1: the file is empty",
		"# nobody\n":                   "1:1: the file is empty",
		"---\n":                        "1:1: the file is empty",
		"{}\n":                         "1:1: the list has no peer",
		"- b\n":                        "1:1: a list of peers must be a mapping, not a list",
		key + "\n":                     "1:1: a list of peers must be a mapping, not a single value",
		"b:\n":                         "1:4: the key is missing",
		"b: []\n":                      "1:4: the key is an empty list",
		"b: {key: x}\n":                "1:4: the key must be a value or a list, not a mapping",
		"\nb: hello\n":                 "2:4: invalid key: it does not begin with longhaul-pair-key-1:",
		"b: " + key[:40] + "\n":        "1:4: invalid key: it is incomplete or altered",
		"b: " + key + "A\n":            "1:4: invalid key: it is incomplete or altered",
		"b: " + newer + "\n":           "1:4: invalid key: it is of a newer release of longhaul",
		"b/: " + key + "\n":            `1:1: invalid name "b/" of a peer`,
		"a b: " + key + "\n":           `1:1: invalid name "a b" of a peer`,
		"b: " + key + "\nb: " + key2:   "2:1: b is there twice",
		"b: " + key + "\nc: " + key:    "2:4: the key " + peerKey(1).Short() + " is there twice",
		"b: " + key + "\nb/1: " + key2: "2:1: b is one host on line 1, and no site with the host b/1",
		"b/1: " + key + "\nb: " + key2: "2:1: b is a site, with the host b/1 on line 1",
		"b: [" + key + ", " + key2 + ", " + peerKey(3).String() + "]": "1:4: a host has 3 keys, and at most 2 during a rotation",
		"b: [" + key + ", " + key + "]":                               "1:4: the key " + peerKey(1).Short() + " is there twice",
		"b: &x " + key + "\n":                                         "1:4: YAML anchors and aliases are not supported",
		"b: " + key + "\n---\nc: " + key2:                             "3:2: a second YAML document begins here",
	} {
		peers, err := ReadPeers("peers.yaml", strings.NewReader(text))
		var errs Errors
		if !errors.As(err, &errs) || len(errs) != 1 || peers != nil {
			t.Errorf("%q: %v, %v", text, peers, err)
			continue
		}
		if got := errs[0].At.String() + ": " + errs[0].Problem; got != "peers.yaml:"+want || errs[0].Fix == "" {
			t.Errorf("%q: %s; %s, want %s", text, got, errs[0].Fix, want)
		}
	}
}
