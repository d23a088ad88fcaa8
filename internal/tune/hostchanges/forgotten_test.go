package hostchanges

import (
	"strings"
	"testing"
)

// Hosts with many namespaces that come and go get one line for each thing, not for each namespace.
func TestForgottenTogether(t *testing.T) {
	var b strings.Builder
	if err := (Outcome{Forgotten: []string{"relay s", "relay a", "relay s", "relay s"}}).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = "forgot relay a: its network namespace is deleted\nforgot relay s, 3 times: its network namespaces are deleted\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
