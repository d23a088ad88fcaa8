package config

import (
	"os"
	"strings"
	"testing"
)

const page = "../../../docs/configuration.md"

// TestPageNamesEveryKey compares docs/configuration.md with the decoder's keys.
func TestPageNamesEveryKey(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	tree, fault := parseYAML("full.yaml", findCase(t, "good", "full").yaml)
	if fault != nil {
		t.Fatal(fault)
	}
	d := &decoder{ctx: t.Context(), loader: testLoader(), keys: map[string][]string{}}
	d.config(tree)
	within := map[string]string{"log": "log.", "limits": "limits.", "history": "history.", "proxy_protocol": "proxy_protocol.", "proxy_protocol.in": "proxy_protocol.in.", "health": "health.", "dashboard": "dashboard.", "pair": "pair.", "a path of pair": "pair.paths.", "pair_from": "pair_from.", "intercept": "intercept.", "a destination": "destinations.", "original": "original.", "interception": "interception."}
	for section, keys := range d.keys {
		for _, key := range keys {
			switch {
			case section == "keepalive", section == "a hop of forward": // one row shows all of them
				key += ":"
			case section == "check":
				key = "`check." + key + "`"
			case key == "check" && section != "health":
				continue // its keys are there
			case key == "interception", key == "log", key == "limits", key == "history", key == "dashboard", key == "proxy_protocol", key == "health", section == "proxy_protocol" && key == "in": // their keys are there
				continue
			default:
				key = "`" + within[section] + key + "`"
			}
			if !strings.Contains(string(text), key) {
				t.Errorf("%s does not name %s of %s", page, key, section)
			}
		}
	}
}
