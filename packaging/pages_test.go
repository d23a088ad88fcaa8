package packaging

import (
	"path"
	"strings"
	"testing"
)

// TestSharedPagesLeadSomewhere holds that every link of an installed page leads to an installed file.
func TestSharedPagesLeadSomewhere(t *testing.T) {
	all, err := Shared()
	if err != nil {
		t.Fatal(err)
	}
	pages, found := 0, 0
	for name, text := range all {
		if path.Ext(name) != ".md" {
			continue
		}
		pages++
		for _, m := range links.FindAllSubmatch(text, -1) {
			target, _, _ := strings.Cut(string(m[2]), "#")
			if target == "" || strings.Contains(target, ":") {
				continue // on the page, or of another host
			}
			found++
			to, has := path.Join(path.Dir(name), target), false
			for other := range all {
				has = has || other == to || strings.HasPrefix(other, to+"/")
			}
			if !has {
				t.Errorf("%s: %s leads nowhere", name, m[0])
			}
		}
	}
	if pages < 40 || found < 150 {
		t.Errorf("only %d links on %d pages", found, pages)
	}
}

func TestSharedPage(t *testing.T) {
	all, err := Shared()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ page, text, want string }{
		{"a.md", "see [x](relay.md#y) and [z](#here)", "see [x](relay.md#y) and [z](#here)"},
		{"a.md", "see [x](https://example.net/)", "see [x](https://example.net/)"},
		{"a.md", "([runs](records/figures.md#y)).", "(runs, `docs/records/figures.md` of the sources)."},
		{"design/a.md", "[records/haul.md](../records/haul.md)", "`docs/records/haul.md` of the sources"},
		{"design/a.md", "[pages](../relay.md)", "[pages](../relay.md)"},
		{"a.md", "[packaging/examples](../packaging/examples)", "[examples](examples)"},
		{"a.md", "[the schema](../packaging/longhaul.schema.json)", "[the schema](../../longhaul/longhaul.schema.json)"},
		{"a.md", "One.\n\n![A\npicture](a.png)\nof it.\n\nTwo.\n", "One.\n\nTwo.\n"},
	} {
		if got := string(sharedPage(test.page, []byte(test.text), all)); got != test.want {
			t.Errorf("%s: %q becomes %q, want %q", test.page, test.text, got, test.want)
		}
	}
}
