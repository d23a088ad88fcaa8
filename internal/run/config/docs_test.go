package config

import (
	"maps"
	"os"
	"slices"
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
	within := map[string]string{"log": "log.", "metrics": "metrics.", "limits": "limits.", "history": "history.", "proxy_protocol": "proxy_protocol.", "proxy_protocol.in": "proxy_protocol.in.", "health": "health.", "dashboard": "dashboard.", "pair": "pair.", "a path of pair": "pair.paths.", "pair_from": "pair_from.", "intercept": "intercept.", "a destination": "destinations.", "original": "original.", "interception": "interception."}
	for section, keys := range d.keys {
		for _, key := range keys {
			switch {
			case section == "keepalive", section == "a hop of forward", section == "a service of forward", section == "a sink of ship": // one row shows all of them
				key += ":"
			case section == "check":
				key = "`check." + key + "`"
			case key == "check" && section != "health":
				continue // its keys are there
			case key == "interception", key == "log", key == "metrics", key == "limits", key == "history", key == "dashboard", key == "proxy_protocol", key == "health", section == "proxy_protocol" && key == "in": // their keys are there
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

// TestPageNamesKeysOutsideDefaults holds that the page names the keys of a tunnel that defaults lacks.
func TestPageNamesKeysOutsideDefaults(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, row, _ := strings.Cut(string(text), "\n| `defaults` |")
	row, _, _ = strings.Cut(row, "\n")
	tree, fault := parseYAML("full.yaml", findCase(t, "good", "full").yaml)
	if fault != nil {
		t.Fatal(fault)
	}
	d := &decoder{ctx: t.Context(), loader: testLoader(), keys: map[string][]string{}}
	d.config(tree)
	if len(d.keys["a tunnel"]) == 0 || len(d.keys["defaults"]) == 0 {
		t.Fatalf("keys of %v", slices.Sorted(maps.Keys(d.keys)))
	}
	for _, key := range d.keys["a tunnel"] {
		if named := strings.Contains(row, "`"+key+"`") && key != "lan" && key != "wan"; named == slices.Contains(d.keys["defaults"], key) {
			t.Errorf("the row of defaults names %s: %v", key, named)
		}
	}
}

// TestChangelogHasRemovedKeys holds that the section that messages name has each removed key. So the
// release that gives the section its name gives it to the messages.
func TestChangelogHasRemovedKeys(t *testing.T) {
	text, err := os.ReadFile("../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+removedIn+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, gone, _ := strings.Cut(section, "\n### Removed\n")
	gone, _, _ = strings.Cut(gone, "\n### ")
	if !found || gone == "" {
		t.Fatalf("CHANGELOG.md has no section %s with removals", removedIn)
	}
	for _, key := range append(slices.Collect(maps.Keys(removed)), "lanes: auto") {
		if !strings.Contains(gone, "`"+key+"`") {
			t.Errorf("CHANGELOG.md does not say under %s that %s was removed", removedIn, key)
		}
	}
}
