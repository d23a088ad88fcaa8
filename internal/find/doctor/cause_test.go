package doctor

import (
	"os"
	"strings"
	"testing"
)

// TestEachCauseHasAFile holds that a cause is found by its name: random-loss in cause_random_loss.go.
func TestEachCauseHasAFile(t *testing.T) {
	for _, cause := range Causes() {
		name := "cause_" + strings.ReplaceAll(string(cause), "-", "_") + ".go"
		text, err := os.ReadFile(name)
		if err != nil || strings.Count(string(text), "= causeEntry{") != 1 {
			t.Errorf("%s: %v; want a file with this cause alone", name, err)
		}
	}
}
