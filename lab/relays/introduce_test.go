package relays

import (
	"strings"
	"testing"
)

func TestInvitation(t *testing.T) {
	if line, err := invitation(strings.NewReader("longhaul-pair-invite-2:abc\nsite-a has joined\n")); line != "longhaul-pair-invite-2:abc" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if _, err := invitation(strings.NewReader("")); err == nil {
		t.Error("no invitation, and no error")
	}
}
