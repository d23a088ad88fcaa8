package manpage

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// FromMarkdown turns a page of docs/ into a manual page. It knows what those
// pages have: headings, paragraphs, lists, code, tables, links. A table becomes
// a list of its first column with what the others say, since a terminal is too
// narrow for it.
func FromMarkdown(title Title, page string) []byte {
	var b strings.Builder
	title.write(&b)
	m := markdown{out: &b}
	rows := strings.Split(page, "\n")
	if len(rows) > 0 && strings.HasPrefix(rows[0], "# ") {
		rows = rows[1:] // the summary stands for it
	}
	section(&b, "DESCRIPTION")
	m.fresh = true
	for len(rows) > 0 {
		rows = rows[m.block(rows):]
	}
	return []byte(b.String())
}

type markdown struct {
	out   *strings.Builder
	fresh bool // right after a heading, where nothing needs to be set apart
}

// block writes what begins with the first row, and says how many rows it has.
func (m *markdown) block(rows []string) int {
	row := rows[0]
	until := func(ends func(row string) bool) int {
		n := 1
		for n < len(rows) && !ends(rows[n]) {
			n++
		}
		return n
	}
	blank := func(row string) bool { return strings.TrimSpace(row) == "" }
	fresh := m.fresh
	m.fresh = false
	switch {
	case blank(row):
		m.fresh = fresh
		return 1
	case strings.HasPrefix(row, "### "):
		fmt.Fprintf(m.out, ".SS %s\n", inline(row[4:]))
		m.fresh = true
		return 1
	case strings.HasPrefix(row, "## "):
		section(m.out, strings.ToUpper(inline(row[3:])))
		m.fresh = true
		return 1
	case strings.HasPrefix(row, "```"):
		n := until(func(row string) bool { return strings.HasPrefix(row, "```") })
		literal(m.out, rows[1:n], fresh)
		return min(n+1, len(rows))
	case strings.HasPrefix(row, "    "):
		n := until(func(row string) bool { return !strings.HasPrefix(row, "    ") })
		literal(m.out, rows[:n], fresh)
		return n
	case strings.HasPrefix(row, "|"):
		n := until(func(row string) bool { return !strings.HasPrefix(row, "|") })
		table(m.out, rows[:n])
		return n
	case strings.HasPrefix(row, "- "):
		n := until(func(row string) bool { return !strings.HasPrefix(row, "  ") })
		m.out.WriteString(".IP \\(bu 2\n")
		for i, row := range rows[:n] {
			m.out.WriteString(inline(strings.TrimSpace(strings.TrimPrefix(row, "- "[min(i, 1)*2:]))) + "\n")
		}
		return n
	}
	n := until(func(row string) bool {
		return blank(row) || strings.HasPrefix(row, "|") || strings.HasPrefix(row, "- ") || strings.HasPrefix(row, "```") || strings.HasPrefix(row, "#")
	})
	if !fresh {
		m.out.WriteString(".PP\n")
	}
	// Code and links may go on in the next row.
	m.out.WriteString(inline(strings.Join(rows[:n], " ")) + "\n")
	return n
}

// table writes a row as an item: the first cell, in brackets what is between,
// and the last cell below it.
func table(b *strings.Builder, rows []string) {
	header := cells(rows[0])
	for i, row := range rows {
		if i == 1 && strings.Trim(row, "|-: ") == "" || i == 0 {
			continue
		}
		c := cells(row)
		b.WriteString(".TP\n" + inline(strings.ReplaceAll(c[0], "`", "**")))
		for j := 1; j < len(c)-1; j++ {
			if c[j] != "" {
				said := c[j]
				if j < len(header) && said != "required" { // the default of which there is none
					said = strings.TrimSpace(header[j] + " " + said)
				}
				b.WriteString(" (" + inline(said) + ")")
			}
		}
		b.WriteString("\n")
		if len(c) > 1 {
			b.WriteString(inline(c[len(c)-1]) + "\n")
		}
	}
}

// cells parts a row of a table. An escaped bar is none.
func cells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(strings.TrimSpace(row), "|"), `\|`, "\x00")
	parts := strings.Split(row, "|")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.TrimSpace(p), "\x00", "|")
	}
	return parts
}

var spans = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("`([^`]+)`|\\*\\*([^*\\s][^*]*)\\*\\*|\\*([^*\\s][^*]*)\\*|\\[([^\\]]+)\\]\\(([^)]*)\\)")
})

// inline writes text with its code, emphasis and links. A link to another page of docs/ becomes
// its words, with the page's name unless they have it.
func inline(s string) string {
	var b strings.Builder
	for {
		at := spans().FindStringSubmatchIndex(s)
		if at == nil {
			break
		}
		b.WriteString(escapeAll(s[:at[0]]))
		group := func(n int) string {
			if at[2*n] < 0 {
				return ""
			}
			return s[at[2*n]:at[2*n+1]]
		}
		switch {
		case group(1) != "":
			b.WriteString(`\fB` + escapeAll(group(1)) + `\fR`)
		case group(2) != "":
			b.WriteString(`\fB` + escapeAll(group(2)) + `\fR`)
		case group(3) != "":
			b.WriteString(`\fI` + escapeAll(group(3)) + `\fR`)
		default:
			b.WriteString(inline(group(4)))
			page, _, _ := strings.Cut(group(5), "#")
			switch {
			case strings.HasPrefix(page, "http"):
				b.WriteString(" <" + escapeAll(group(5)) + ">")
			case page != "" && !strings.Contains(group(4), page):
				b.WriteString(" (" + escapeAll(page) + ")")
			}
		}
		s = s[at[1]:]
	}
	b.WriteString(escapeAll(s))
	text := b.String()
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
