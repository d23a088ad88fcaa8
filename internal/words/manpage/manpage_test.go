package manpage

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"longhaul/docs"
	"longhaul/test/nettest"
)

// body is a page's source without its head.
func body(roff []byte, after string) string {
	_, rest, _ := strings.Cut(string(roff), after+"\n")
	return rest
}

func TestMarkdown(t *testing.T) {
	for name, test := range map[string]struct{ page, want string }{
		"paragraphs": {"# Title\n\nOne two\nthree.\n\nFour.\n", "One two three.\n.PP\nFour.\n"},
		"headings":   {"## Values\n\n### More of them\n\nText\n", ".SH VALUES\n.SS More of them\nText\n"},
		"code":       {"Run `a-b`:\n\n    longhaul x \\\n      .y\n\n```yaml\na: 'b'\n```\nEnd\n", "Run \\fBa\\-b\\fR:\n.PP\n.RS 2\n.nf\nlonghaul x \\e\n  .y\n.fi\n.RE\n.PP\n.RS 2\n.nf\na: \\(aqb\\(aq\n.fi\n.RE\n.PP\nEnd\n"},
		"emphasis":   {"A *leg* is **one** *of two*.\n", "A \\fIleg\\fR is \\fBone\\fR \\fIof two\\fR.\n"},
		"links":      {"See [`x`](cc.md#a) and [there](https://example.net/).\n", "See \\fBx\\fR (cc.md) and there <https://example.net/>.\n"},
		"list":       {"- one\n  more\n- two\n", ".IP \\(bu 2\none\nmore\n.IP \\(bu 2\ntwo\n"},
		"table": {"| key | default | meaning |\n|---|---|---|\n| `a.b` R | `off` | a \\| b |\n| `c` | required | d |\n| `e` | | f |\n",
			".TP\n\\fBa.b\\fR R (default \\fBoff\\fR)\na | b\n.TP\n\\fBc\\fR (required)\nd\n.TP\n\\fBe\\fR\nf\n"},
		"no request":     {".TH is text\n", "\\&.TH is text\n"},
		"unended code":   {"```\na\n", ".RS 2\n.nf\na\n\n.fi\n.RE\n"},
		"stars and dots": {"0.1 * 2 is `*`\n", "0.1 * 2 is \\fB*\\fR\n"},
	} {
		got := body(FromMarkdown(Title{Name: "x", Section: 5, Summary: "y"}, test.page), ".SH DESCRIPTION")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestCommandPage(t *testing.T) {
	p := Page{
		Title:       Title{Name: "longhaul-x", Section: 1, Date: "2026-11-21", Source: "longhaul v1.0-rc", Summary: "do x"},
		Synopsis:    []string{"longhaul x [flags]"},
		Description: "x does it,\nand more.\n\n  A   one\n  B   two\nIt ends.\n",
		Options:     []Option{{"-c, --config", "FILE", "the\nfile"}},
		ExitStatus:  "0 done.",
		Files:       []Option{{"/etc/x", "", "its file"}},
		Examples:    "  longhaul x\n    | cat",
		SeeAlso:     []string{"longhaul(1)", "longhaul.yaml(5)"},
	}
	want := `.TH "LONGHAUL\-X" 1 "2026-11-21" "longhaul v1.0\-rc"
.nh
.ad l
.SH NAME
longhaul\-x \- do x
.SH SYNOPSIS
\fBlonghaul x [flags]\fR
.SH DESCRIPTION
x does it,
and more.
.PP
.RS 2
.nf
A   one
B   two
.fi
.RE
.PP
It ends.
.SH OPTIONS
.TP
\fB\-c, \-\-config\fR \fIFILE\fR
the file
.SH EXIT STATUS
0 done.
.SH EXAMPLES
.RS 2
.nf
longhaul x
  | cat
.fi
.RE
.SH FILES
.TP
\fB/etc/x\fR
its file
.SH SEE ALSO
.BR longhaul (1),
.BR longhaul.yaml (5)
`
	if diff := cmp.Diff(want, string(p.Roff())); diff != "" {
		t.Error(diff)
	}
}

// TestPageOfTheConfiguration formats the whole page, on which groff finds
// nothing wrong and of which no word is lost.
func TestPageOfTheConfiguration(t *testing.T) {
	groff := nettest.RequireProgram(t, "groff", "groff-base")
	cmd := exec.Command(groff, "-man", "-Kutf8", "-Tutf8", "-ww", "-P-cbou", "-rLL=78n")
	cmd.Stdin = strings.NewReader(string(FromMarkdown(Title{Name: "longhaul.yaml", Section: 5, Summary: "configuration"}, docs.Configuration)))
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		t.Fatalf("groff: %v %s", err, complaints.String())
	}
	plain := strings.NewReplacer("`", "", "*", "", "|", " ", "-", "").Replace
	text := plain(out.String())
	_, page, _ := strings.Cut(docs.Configuration, "\n") // the title is another
	for _, link := range regexp.MustCompile(`\]\(([a-z-]+\.md)`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(text, plain(link[1])) {
			t.Errorf("the page %s is not named", link[1])
		}
	}
	if strings.Contains(text, "see right") {
		t.Error("a default is looked for to the right, where a manual page has nothing")
	}
	for line := range strings.Lines(page) {
		if strings.ContainsAny(line, "[]()#") || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| k") || strings.HasPrefix(line, "```") {
			continue // links, headings of pages and tables, and what only parts the rest
		}
		for _, word := range strings.Fields(plain(line)) {
			if !strings.Contains(text, word) {
				t.Errorf("%q of %q is lost", word, line)
			}
		}
	}
}

func FuzzFromMarkdown(f *testing.F) {
	f.Add("```\n| a | `b\n- **\n    x")
	f.Add("# a\n\nb\n## c\n- d\n  [e](f)\n")
	f.Fuzz(func(t *testing.T, page string) {
		if strings.ContainsRune(page, '\r') {
			return
		}
		roff := body(FromMarkdown(Title{Name: "x"}, page), ".SH DESCRIPTION")
		for line := range strings.Lines(roff) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(line, ".") {
				switch word {
				case ".PP", ".RS", ".RE", ".nf", ".fi", ".SS", ".SH", ".TP", ".IP":
				default:
					t.Errorf("text is taken for the request %q", line)
				}
			}
			if strings.HasPrefix(line, "'") {
				t.Errorf("text is taken for the request %q", line)
			}
		}
	})
}
