package daemon

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"longhaul/internal/words/remedy"
)

// TestFailedUpgradeSaysWhatToDo: the remedy of the cause is that of the upgrade.
func TestFailedUpgradeSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err error
		fix string
	}{
		{fmt.Errorf("hand over the listener on 10.0.0.1:80: %w", syscall.EMFILE), "LimitNOFILE="},
		{remedy.New(errors.New("tunnel a"), "name a target"), "name a target"},
		{errors.New("no answer"), "fix that, and try again"},
	} {
		if got := failedUpgrade(c.err); !strings.Contains(got.Error(), c.err.Error()) || !strings.Contains(remedy.Of(got), c.fix) {
			t.Errorf("%v: %v; %q, want %q", c.err, got, remedy.Of(got), c.fix)
		}
	}
}
