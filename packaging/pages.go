package packaging

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	links    = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
	pictures = regexp.MustCompile(`(?m)^!\[[^\]]*\]\([^)]*\)\n(?:.+\n)*\n?`)
)

// sharedPage is a page of docs/ below share/: its links lead to what is there, and name what only the
// sources have. Pictures are not there.
func sharedPage(page string, text []byte, shared map[string][]byte) []byte {
	text = pictures.ReplaceAll(text, nil)
	return links.ReplaceAllFunc(text, func(link []byte) []byte {
		m := links.FindSubmatch(link)
		words := string(m[1])
		target, fragment, _ := strings.Cut(string(m[2]), "#")
		if target == "" || strings.Contains(target, ":") {
			return link
		}
		source := path.Join("docs", path.Dir(page), target)
		to, has := sharedOf(source, shared)
		switch {
		case has:
			if target, _ = filepath.Rel(path.Join(sharedPages, path.Dir(page)), to); words == source {
				words = target
			}
			if fragment != "" {
				target += "#" + fragment
			}
			return []byte("[" + words + "](" + target + ")")
		case strings.Contains(source, words):
			return []byte("`" + source + "` of the sources")
		}
		return []byte(words + ", `" + source + "` of the sources")
	})
}

// sharedOf is where a file or directory of the sources is below share/.
func sharedOf(source string, shared map[string][]byte) (to string, has bool) {
	if page, is := strings.CutPrefix(source, "docs/"); is {
		to = path.Join(sharedPages, page)
	} else if file, is := strings.CutPrefix(source, "packaging/"); is {
		top, rest, _ := strings.Cut(file, "/")
		if sharedAs[top] == "" {
			return "", false
		}
		to = path.Join(sharedAs[top], rest)
	} else {
		return "", false
	}
	for name := range shared {
		if name == to || strings.HasPrefix(name, to+"/") {
			return to, true
		}
	}
	return "", false
}
