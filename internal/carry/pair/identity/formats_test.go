package identity

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/test/nettest"
)

var update = flag.Bool("update", false, "write testdata/*.golden")

var noon = time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)

// checkGolden holds a file format against testdata.
func checkGolden(t *testing.T, name string, text []byte) {
	t.Helper()
	path := "testdata/" + name + ".golden"
	if *update {
		nettest.Must(t, os.WriteFile(path, text, 0o644))
	}
	want, err := os.ReadFile(path)
	nettest.Must(t, err)
	if !bytes.Equal(text, want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, text, want)
	}
}

func testPeers() peerList {
	k := func(n byte) PublicKey { return testKey(n).public() }
	return peerList{
		{Name: "site-a", Since: noon, Keys: []PublicKey{k(1)}},
		{Name: "site-b", Since: noon.Add(time.Hour), Keys: []PublicKey{k(3), k(2)}, Holds: k(9)},
		{Name: "site-c/c1", Since: noon, Keys: []PublicKey{k(4)}},
	}
}

func testFormer() formerKeys {
	k := func(n byte) PublicKey { return testKey(n).public() }
	return formerKeys{{k(11), k(2)}, {k(2), k(3)}}
}

func testInvitations() invitationList {
	return invitationList{
		{verifier: testKey(5).public(), name: "site-c", made: noon},
		{verifier: testKey(6).public(), name: "site-a", made: noon, used: testKey(1).public()},
		{verifier: testKey(7).public(), name: "site-c/c2", made: noon},
	}
}

// TestFormats holds the files that earlier versions have written.
func TestFormats(t *testing.T) {
	keys := hostKeys{testKey(9), testKey(8)}
	checkGolden(t, "key", keys.format())
	parsed, err := parseHostKeys(keys.format())
	if err != nil || !reflect.DeepEqual(parsed, keys) {
		t.Errorf("keys %v, %v", parsed, err)
	}
	checkGolden(t, "peers", testPeers().format())
	peers, err := parsePeers(testPeers().format())
	if err != nil || !reflect.DeepEqual(peers, testPeers()) {
		t.Errorf("peers %v, %v", peers, err)
	}
	checkGolden(t, "invitations", testInvitations().format())
	invitations, err := parseInvitations(testInvitations().format())
	if err != nil || !reflect.DeepEqual(invitations, testInvitations()) {
		t.Errorf("invitations %v, %v", invitations, err)
	}
	checkGolden(t, "former", testFormer().format())
	former, err := parseFormer(testFormer().format())
	if err != nil || !reflect.DeepEqual(former, testFormer()) {
		t.Errorf("former keys %v, %v", former, err)
	}
	inv := testInvitation()
	checkGolden(t, "line", []byte(inv.Line()+"\n"))
	inv.former = true
	checkGolden(t, "line1", []byte(inv.Line()+"\n"))
	if got, err := ParseInvitation(inv.Line()); err != nil || !reflect.DeepEqual(*got, inv) {
		t.Errorf("a line of the older form is %+v, %v", got, err)
	}
}

func testInvitation() Invitation {
	return Invitation{
		Name: "site-b", Addresses: []string{"relay-b.example.net:6000", "[2001:db8::9]:6000"},
		Key: testKey(7).public(), secret: [secretBytes]byte{1, 2, 3},
	}
}

// TestSecretsStayOut holds that nothing prints a private key or a secret by accident.
func TestSecretsStayOut(t *testing.T) {
	key, inv := testKey(1), testInvitation()
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		text := fmt.Sprintf(format, key) + fmt.Sprintf(format, hostKeys{key}) + fmt.Sprintf(format, &inv) + fmt.Sprintf(format, inv)
		for _, secret := range []string{encode("", key.Seed()), encode("", inv.secret[:]), fmt.Sprintf(format, key.Seed()), fmt.Sprintf(format, inv.secret)} {
			if strings.Contains(text, secret) {
				t.Errorf("%s prints %s", format, text)
			}
		}
	}
}

func TestParseMistakes(t *testing.T) {
	key, private := testKey(1).public().String(), encode(privatePrefix, testKey(1).Seed())
	private2, private3 := encode(privatePrefix, testKey(2).Seed()), encode(privatePrefix, testKey(3).Seed())
	const stamp = "2026-11-25T12:00:00Z"
	parse := map[string]func(string) error{
		"key":         func(s string) error { _, err := parseHostKeys([]byte(s)); return err },
		"peers":       func(s string) error { _, err := parsePeers([]byte(s)); return err },
		"invitations": func(s string) error { _, err := parseInvitations([]byte(s)); return err },
		"former":      func(s string) error { _, err := parseFormer([]byte(s)); return err },
		"public":      func(s string) error { _, err := ParsePublicKey(s); return err },
		"line":        func(s string) error { _, err := ParseInvitation(s); return err },
	}
	verifier := encode(verifierPrefix, testKey(4).Seed())
	inv := testInvitation()
	line := inv.Line()
	for _, c := range []struct{ what, text, want string }{
		{"key", "", "no line begins with longhaul-pair-private-1:"},
		{"key", "# comment\n\n", "no line begins with longhaul-pair-private-1:"},
		{"key", "#\n" + private[:60], "line 2: it is incomplete or altered"},
		{"key", key, "line 1: it does not begin with longhaul-pair-private-1:"},
		{"key", private + "\n" + private, "line 2: the file has the same key twice"},
		{"key", private + "\n" + private2 + "\n" + private3, "line 3: the file has more than two keys"},
		{"public", "", "invalid key: it does not begin with longhaul-pair-key-1:"},
		{"public", key[:len(key)-1], "invalid key: it is incomplete or altered"},
		{"public", key + "A", "invalid key: it is incomplete or altered"},
		{"public", strings.Replace(key, ":", ":A", 1)[:len(key)], "invalid key: it is incomplete or altered"},
		{"public", key[:30] + "\n" + key[30:], "invalid key: it is incomplete or altered"},
		{"public", encode(KeyPrefix, make([]byte, 32)), "invalid key: it is zero"},
		{"public", encode(KeyPrefix, make([]byte, 31)), "invalid key: it is incomplete or altered"},
		{"public", private, "invalid key: it does not begin with longhaul-pair-key-1:"},
		{"peers", "site-b " + stamp, "line 1: 2 words, want name, time, keys and has=KEY"},
		{"peers", "-b " + stamp + " " + key, `line 1: invalid name "-b" of a peer`},
		{"peers", "b yesterday " + key, `line 1: invalid time "yesterday", want one like 2026-11-20T14:30:00Z`},
		{"peers", "b 2026-11-25T12:00:00.5Z " + key, `line 1: invalid time "2026-11-25T12:00:00.5Z", want one like 2026-11-20T14:30:00Z`},
		{"peers", "b " + stamp + " " + key + "," + key, "line 1: the same key twice"},
		{"peers", "b " + stamp + " " + key + ",", "line 1: invalid key: it does not begin with longhaul-pair-key-1:"},
		{"peers", "b " + stamp + " " + key + " had=" + key, "line 1: the last word does not begin with has="},
		{"peers", "b " + stamp + " " + key + "\nb " + stamp + " " + testKey(2).public().String(), "line 2: there is a peer b already"},
		{"peers", "b " + stamp + " " + key + "\nc " + stamp + " " + key, "line 2: the peer b has the key " + testKey(1).public().Short() + " already"},
		{"peers", "b " + stamp + " " + key + "\nb/1 " + stamp + " " + testKey(2).public().String(), "line 2: b is one peer here, and no site that b/1 could be a host of"},
		{"peers", "b/1 " + stamp + " " + key + "\nb " + stamp + " " + testKey(2).public().String(), "line 2: b is a site here, with the host b/1"},
		{"peers", "b/1/2 " + stamp + " " + key, `line 1: invalid name "b/1/2" of a peer`},
		{"former", key, "line 1: 1 words, want a key and its successor"},
		{"former", key + " " + key[:40], "line 1: invalid key: it is incomplete or altered"},
		{"invitations", verifier + " b", "line 1: 2 words, want verifier, name, time and used=KEY"},
		{"invitations", key + " b " + stamp, "line 1: it does not begin with longhaul-pair-verifier-1:"},
		{"invitations", verifier + " b " + stamp + " " + key, "line 1: the last word does not begin with used="},
		{"invitations", verifier + " b " + stamp + " used=" + key[:40], "line 1: invalid key: it is incomplete or altered"},
		{"line", "", "invalid invitation: it does not begin with longhaul-pair-invite-2:"},
		{"line", "hello", "invalid invitation: it does not begin with longhaul-pair-invite-2:"},
		{"line", key, "invalid invitation: it does not begin with longhaul-pair-invite-2:"},
		{"line", "longhaul-pair-invite-3:" + line[23:], "invalid invitation: the line is of a newer release of longhaul"},
		{"line", "longhaul-pair-invite-10:abc", "invalid invitation: the line is of a newer release of longhaul"},
		{"line", "longhaul-pair-invite-0:abc", "invalid invitation: it does not begin with longhaul-pair-invite-2:"},
		{"line", line[:len(line)-5], "invalid invitation: it is incomplete or altered"},
		{"line", line[:80] + line[81:], "invalid invitation: it is incomplete or altered"},
		{"line", encode(InvitationPrefix, nil), "invalid invitation: it is incomplete or altered"},
		{"line", encode(InvitationPrefix, make([]byte, 100)), "invalid invitation: it is incomplete or altered"},
		{"line", (&Invitation{Name: "b", Key: inv.Key}).Line(), "invalid invitation: 0 addresses"},
		{"line", (&Invitation{Name: "b", Key: inv.Key, Addresses: []string{"b"}}).Line(),
			`invalid invitation: invalid address "b": missing port in address`},
		{"line", (&Invitation{Name: "a/", Key: inv.Key, Addresses: inv.Addresses}).Line(), `invalid invitation: invalid name "a/" of a peer`},
		{"line", (&Invitation{Name: "a b", Key: inv.Key, Addresses: inv.Addresses}).Line(), `invalid invitation: invalid name "a b" of a peer`},
	} {
		err := parse[c.what](c.text)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %q: %v, want %s", c.what, c.text, err, c.want)
		}
		if (c.what == "public" || c.what == "line") && remedy.Of(err) == "" {
			t.Errorf("%s %q: no hint", c.what, c.text)
		}
	}
	folded := line[:50] + "\n  " + line[50:] + "\r\n"
	if got, err := ParseInvitation(folded); err != nil || !reflect.DeepEqual(*got, inv) {
		t.Errorf("a folded line is %+v, %v", got, err)
	}
}

func TestCheckAddresses(t *testing.T) {
	for _, good := range []string{"b:1", "relay_b.example.net:65535", "203.0.113.9:6000", "[2001:db8::9]:6000", "[fe80::1%eth0]:6000"} {
		nettest.Must(t, CheckAddresses([]string{good}))
	}
	for bad, want := range map[string]string{
		"b":                                 "missing port in address",
		":6000":                             "no host",
		"b:0":                               "the port is not 1 to 65535",
		"b:70000":                           "the port is not 1 to 65535",
		"b:ssh":                             "the port is not 1 to 65535",
		"0.0.0.0:6000":                      "this is no address of one host",
		"[::]:6000":                         "this is no address of one host",
		"2001:db8::9:6000":                  "too many colons in address",
		"a b:6000":                          "neither a host name nor an address",
		strings.Repeat("b", 250) + ":60000": "more than 255 bytes",
	} {
		err := CheckAddresses([]string{bad})
		checkMistake(t, err, fmt.Sprintf("invalid address %q: %s", bad, want))
	}
	checkMistake(t, CheckAddresses(nil), "0 addresses")
	checkMistake(t, CheckAddresses(make([]string, 9)), "9 addresses")
}

func TestCheckName(t *testing.T) {
	for _, good := range []string{"b", "site-b", "Site_B.example", "9", strings.Repeat("x", 64), "site-b/b1", "a/b", strings.Repeat("x", 31) + "/" + strings.Repeat("y", 32)} {
		nettest.Must(t, CheckName(good))
	}
	for _, bad := range []string{"", "-b", ".b", "a b", "/", "a/", "/b", "a//b", "a/b/c", "a/-b", "a/..", "../b", "ä", "a\n", strings.Repeat("x", 65), strings.Repeat("x", 32) + "/" + strings.Repeat("y", 32)} {
		checkMistake(t, CheckName(bad), fmt.Sprintf("invalid name %q of a peer", bad))
	}
}
