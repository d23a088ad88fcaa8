package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestPools holds that idle connections which the far relay would close at once are named.
func TestPools(t *testing.T) {
	for _, c := range []struct {
		tunnels, warm int
		warned        bool
	}{{16, 64, false}, {17, 64, true}, {200, 4, false}} {
		var text strings.Builder
		text.WriteString("tunnels:\n")
		for i := range c.tunnels {
			fmt.Fprintf(&text, "- {name: t%d, listen: \"127.0.0.1:%d\", forward: \"192.0.2.1:6000\", pair: {peer: far, warm: %d}}\n", i, 5000+i, c.warm)
		}
		loaded, err := testLoader().Parse(t.Context(), "pools.yaml", []byte(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		var warned int
		for _, w := range loaded.Warnings {
			if strings.Contains(w.Error(), "keep more than 1024 idle connections") {
				warned++
			}
		}
		if (warned == 1) != c.warned {
			t.Errorf("%+v: %d warnings", c, warned)
		}
	}
}
