package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

const schemaFile = "../../../packaging/longhaul.schema.json"

// schema is the part of JSON Schema 2020-12 that the file uses.
type schema struct {
	Defs                 map[string]*schema `json:"$defs"`
	Schema               string             `json:"$schema"`
	Ref                  string             `json:"$ref"`
	Title                string             `json:"title"`
	Description          string             `json:"description"`
	Type                 string             `json:"type"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties *bool              `json:"additionalProperties"`
	Required             []string           `json:"required"`
	Items                *schema            `json:"items"`
	MinItems             int                `json:"minItems"`
	AnyOf                []*schema          `json:"anyOf"`
	Enum                 []string           `json:"enum"`
	Const                *string            `json:"const"`
	Pattern              string             `json:"pattern"`
	MinLength            int                `json:"minLength"`
	MaxLength            int                `json:"maxLength"`
	Minimum              *float64           `json:"minimum"`
	Maximum              *float64           `json:"maximum"`
}

func readSchema(t *testing.T) *schema {
	t.Helper()
	f, err := os.Open(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields() // a word that this test does not check
	var s schema
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (root *schema) resolve(s *schema) *schema {
	for s.Ref != "" {
		s = root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
	}
	return s
}

// check returns an error if the schema does not allow v.
func (root *schema) check(s *schema, at string, v any) error {
	s = root.resolve(s)
	if len(s.AnyOf) > 0 {
		var err error
		for _, one := range s.AnyOf {
			if err = root.check(one, at, v); err == nil {
				break
			}
		}
		if err != nil || s.Type == "" {
			return err
		}
	}
	bad := fmt.Errorf("%s: %v is not allowed", at, v)
	switch v := v.(type) {
	case map[string]any:
		if s.Type != "object" {
			return bad
		}
		for _, key := range s.Required {
			if _, ok := v[key]; !ok {
				return fmt.Errorf("%s: no %s", at, key)
			}
		}
		for key, value := range v {
			p := s.Properties[key]
			if p == nil && s.AdditionalProperties == nil {
				continue
			}
			if p == nil {
				return fmt.Errorf("%s: unknown key %s", at, key)
			}
			if err := root.check(p, at+"."+key, value); err != nil {
				return err
			}
		}
	case []any:
		if s.Type != "array" || len(v) < s.MinItems {
			return bad
		}
		for i, item := range v {
			if err := root.check(s.Items, fmt.Sprintf("%s[%d]", at, i), item); err != nil {
				return err
			}
		}
	case string:
		n := utf8.RuneCountInString(v)
		if s.Const != nil && *s.Const != v || s.Enum != nil && !slices.Contains(s.Enum, v) ||
			s.Const == nil && s.Enum == nil && s.Type != "string" ||
			n < s.MinLength || s.MaxLength > 0 && n > s.MaxLength || !regexp.MustCompile(s.Pattern).MatchString(v) {
			return bad
		}
	case bool:
		if s.Type != "boolean" {
			return bad
		}
	default:
		var number float64
		if _, err := fmt.Sscan(fmt.Sprint(v), &number); err != nil {
			return bad
		}
		if s.Type != "number" && (s.Type != "integer" || number != float64(int64(number))) ||
			s.Minimum != nil && number < *s.Minimum || s.Maximum != nil && number > *s.Maximum {
			return bad
		}
	}
	return nil
}

func TestSchemaHasExactlyTheKnownKeys(t *testing.T) {
	root := readSchema(t)
	tree, fault := parseYAML("full.yaml", findCase(t, "good", "full").yaml)
	if fault != nil {
		t.Fatal(fault)
	}
	d := &decoder{ctx: t.Context(), loader: testLoader(), keys: map[string][]string{}}
	d.config(tree)

	tunnel := root.Defs["tunnel"]
	proxy := tunnel.Properties["proxy_protocol"]
	sections := map[string]*schema{
		"the configuration": root, "defaults": root.Properties["defaults"], "a tunnel": tunnel, "log": root.Properties["log"], "metrics": root.Properties["metrics"], "limits": root.Properties["limits"], "history": root.Defs["history"].AnyOf[1], "a sink of ship": root.Defs["sink"], "dashboard": root.Properties["dashboard"].AnyOf[1],
		"proxy_protocol": proxy, "proxy_protocol.in": proxy.Properties["in"], "lan": root.Defs["leg"], "wan": root.Defs["leg"],
		"keepalive": root.Defs["keepalive"].AnyOf[1], "a hop of forward": root.Defs["hop"].AnyOf[1], "a service of forward": root.Defs["hop"].AnyOf[2], "health": root.Defs["health"].AnyOf[1],
		"check": root.Defs["check"].AnyOf[1], "pair": root.Defs["pair"].AnyOf[1], "a path of pair": root.Defs["path"], "pair_from": root.Defs["pair_from"].AnyOf[1],
		"intercept": root.Defs["intercept"], "original": root.Defs["original"], "a destination": root.Defs["destination"], "interception": root.Properties["interception"],
	}
	for section, known := range d.keys {
		s := sections[section]
		if s == nil {
			t.Errorf("the schema says nothing of %s", section)
			continue
		}
		if s.AdditionalProperties == nil || *s.AdditionalProperties {
			t.Errorf("the schema allows unknown keys in %s", section)
		}
		var keys []string
		for key := range s.Properties {
			keys = append(keys, key)
		}
		known = slices.Clone(known)
		slices.Sort(keys)
		slices.Sort(known)
		if !slices.Equal(keys, known) {
			t.Errorf("%s: the schema has %v, the program %v", section, keys, known)
		}
	}
	if len(d.keys) != len(sections) {
		t.Errorf("the case full uses %d of %d sections", len(d.keys), len(sections))
	}
	for _, word := range root.Defs["leg"].Properties["dscp"].AnyOf[1].Enum {
		if _, ok := parseDSCP(word); !ok {
			t.Errorf("the schema allows the code point %s, the program does not", word)
		}
	}
	if n := len(root.Defs["leg"].Properties["dscp"].AnyOf[1].Enum); n != len(codePoints) {
		t.Errorf("the schema has %d code points, the program %d", n, len(codePoints))
	}
}

func TestSchemaAllowsWhatTheProgramLoads(t *testing.T) {
	root := readSchema(t)
	for _, c := range append(fileCases(t, "good"), fileCase{name: "example", yaml: Example}) {
		var v map[string]any
		if err := yaml.Unmarshal(bytes.TrimPrefix(c.yaml, []byte("\ufeff")), &v); err != nil {
			t.Fatalf("%s: %v", c.file(), err)
		}
		if err := root.check(root, c.file(), v); err != nil {
			t.Error(err)
		}
	}
}

// TestSchemaFindsMistakes lists the bad files that an editor marks. The other
// mistakes need more than a schema: clashes, contradictions, addresses.
func TestSchemaFindsMistakes(t *testing.T) {
	root := readSchema(t)
	for _, name := range []string{
		"unknown-key-top", "unknown-key-tunnel", "unknown-key-leg", "no-tunnels", "tunnels-empty", "tunnels-mapping", "tunnel-scalar",
		"name-missing", "name-invalid", "listen-missing", "forward-missing", "listen-empty-list", "listen-mapping",
		"max-flows-word", "max-flows-zero", "max-flows-quoted", "max-flows-list", "new-flows-negative", "new-flows-zero",
		"duration-no-unit", "duration-bad", "idle-timeout-bad", "proxy-out-version", "proxy-in-untrusted", "wan-side",
		"congestion-control-long", "congestion-control-empty", "rate-bytes", "rate-no-unit", "size-bad", "mss-small", "mss-large", "mtu-probing",
		"keepalive-word", "keepalive-count", "check-word", "check-next", "check-key-relative", "check-interval", "check-unknown-key", "dscp-range", "dscp-name", "log-format", "log-level", "log-scalar",
		"control-socket-relative", "control-socket-long", "workers-range", "limits-share-bad", "limits-share-range", "limits-no-amount", "limits-no-share", "limits-unknown", "history-word", "history-file-relative", "history-file-suffix", "history-size-bad", "history-age-bad", "history-unknown", "history-site", "ship-word", "ship-empty", "ship-no-to", "ship-unknown-key", "ship-scheme", "ship-not-url", "ship-name", "ship-password-relative", "ship-clients", "ship-biflow-word", "drain-timeout-negative", "defaults-name", "pair-word", "pair-no-peer", "pair-unknown-key", "pair-warm", "pair-resume", "pair-encrypt", "pair-paths-empty", "pair-path-unknown-key", "pair-from-encrypt", "pair-from-no-peer", "pair-from-unknown-key", "pair-from-empty", "pair-keys-relative",
		"intercept-word", "intercept-unknown-key", "intercept-no-interface", "intercept-no-to", "intercept-interface-long", "intercept-port-word", "source-word", "when-down-word", "original-no-to", "original-unknown-key", "interception-table-word",
	} {
		var v map[string]any
		if err := yaml.Unmarshal(findCase(t, "bad", name).yaml, &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := root.check(root, name, v); err == nil {
			t.Errorf("the schema allows %s", name)
		}
	}
}
