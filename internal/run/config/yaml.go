package config

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. Real files stay far below; the bounds protect the parser's
// stack and time from a hostile file. Its time grows with the bytes, in one line or
// in many: 0.2 s for a megabyte of prefixes.
const (
	maxFileBytes = 1 << 20
	maxNesting   = 32
)

// emptyFile is the problem of a file without any value.
const emptyFile = "the file is empty"

// parseYAML parses a file into nodes. On a syntax error it returns only that
// error: the rest cannot be trusted.
func parseYAML(file string, data []byte) (root *node, fault *Error) {
	defer func() {
		// The parser is a large library that reads arbitrary files; its panic
		// must not stop the running relay.
		if p := recover(); p != nil {
			root = nil
			fault = &Error{Position{File: file, Line: 1, Column: 1}, fmt.Sprintf("the YAML parser failed (%v)", p), "simplify the file until it loads"}
		}
	}()
	if fault := checkBounds(file, data); fault != nil {
		return nil, fault
	}
	tokens := lexer.Tokenize(string(data))
	if fault := checkNesting(file, tokens); fault != nil {
		return nil, fault
	}
	// Allow duplicates: the decoder reports them in more detail.
	doc, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxError(file, data, err)
	}
	c := converter{file: file}
	var bodies []ast.Node
	for _, d := range doc.Docs {
		if d.Body != nil {
			bodies = append(bodies, d.Body)
		}
	}
	switch len(bodies) {
	case 0:
		return nil, &Error{c.at(nil), emptyFile, "add at least one tunnel; `longhaul config example` prints a file to start from"}
	case 1:
		root = c.convert(bodies[0])
	default:
		return nil, &Error{c.at(bodies[1].GetToken()), "a second YAML document begins here", "put everything into one document and remove the --- line"}
	}
	if c.fault != nil {
		return nil, c.fault
	}
	return root, nil
}

func checkBounds(file string, data []byte) *Error {
	if len(data) > maxFileBytes {
		return &Error{Position{File: file, Line: 1, Column: 1}, fmt.Sprintf("the file has %d bytes, and at most %d are read", len(data), maxFileBytes), "check that this is a longhaul configuration"}
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		for i, b := range line {
			if (b < 0x20 && b != '\n' && b != '\r' && b != '\t') || b == 0x7f {
				return &Error{Position{File: file, Line: number, Column: i + 1}, fmt.Sprintf("control character 0x%02x", b), "remove it; the file must be plain text"}
			}
		}
		if fault := checkText(file, number, line); fault != nil {
			return fault
		}
	}
	return nil
}

// checkNesting bounds the parser's recursion in advance.
func checkNesting(file string, tokens token.Tokens) *Error {
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType, token.MappingValueType:
			dashes++
		}
		if flow > maxNesting || dashes > 4*maxNesting {
			return &Error{Position{File: file, Line: t.Position.Line, Column: t.Position.Column}, fmt.Sprintf("values are nested more than %d deep", maxNesting), "flatten them; no setting needs this"}
		}
	}
	return nil
}

// bracketed is an address that YAML takes for a list, since it is not in quotes.
var bracketed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[^"'0-9A-Za-z])(\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%[^]"']+)?\]:[0-9-]+)`)
})

// knownMistake names the two mistakes that the parser's own words hide; nil: it is another one.
// The first tab in an indentation is one, wherever the parser stumbles over it.
func knownMistake(file string, data []byte, at Position) *Error {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := bytes.TrimLeft(line, " \t")
		if tab := bytes.IndexByte(line[:len(line)-len(text)], '\t'); tab >= 0 && len(bytes.TrimSpace(text)) > 0 && text[0] != '#' {
			return &Error{Position{File: file, Line: number, Column: tab + 1}, fmt.Sprintf("line %d is indented with a tab", number), "use spaces; YAML takes no tabs there"}
		}
		if found := bracketed().FindSubmatchIndex(line); number == at.Line && found != nil {
			address := line[found[2]:found[3]]
			return &Error{Position{File: file, Line: number, Column: found[2] + 1}, fmt.Sprintf("%s is not in quotes, and YAML takes the brackets for a list", address), fmt.Sprintf("write %q", address)}
		}
	}
	return nil
}

func syntaxError(file string, data []byte, err error) *Error {
	at := Position{File: file, Line: 1, Column: 1}
	problem := err.Error()
	var positioned yaml.Error
	if errors.As(err, &positioned) {
		problem = positioned.GetMessage()
		if t := positioned.GetToken(); t != nil && t.Position != nil {
			at.Line, at.Column = max(t.Position.Line, 1), max(t.Position.Column, 1)
		}
	}
	if known := knownMistake(file, data, at); known != nil {
		return known
	}
	problem, _, _ = strings.Cut(problem, "\n")
	return &Error{at, "this is not valid YAML: " + strings.ToLower(problem), "check indentation, colons, quotes and brackets here and on the line above"}
}

// converter walks the parser's tree. It stops at the first unsupported
// construct.
type converter struct {
	file  string
	depth int
	fault *Error
}

func (c *converter) at(t *token.Token) Position {
	p := Position{File: c.file, Line: 1, Column: 1}
	if t != nil && t.Position != nil {
		p.Line, p.Column = max(t.Position.Line, 1), max(t.Position.Column, 1)
	}
	return p
}

func (c *converter) fail(n ast.Node, problem, fix string) *node {
	at := c.at(n.GetToken())
	if c.fault == nil {
		c.fault = &Error{at, problem, fix}
	}
	return &node{kind: null, at: at}
}

func (c *converter) convert(n ast.Node) *node {
	if c.depth++; c.depth > maxNesting {
		return c.fail(n, fmt.Sprintf("values are nested more than %d deep", maxNesting), "flatten them; no setting needs this")
	}
	defer func() { c.depth-- }()

	switch n := n.(type) {
	case *ast.NullNode:
		return &node{kind: null, at: c.at(n.GetToken())}
	case *ast.StringNode:
		quoted := n.Token.Type == token.SingleQuoteType || n.Token.Type == token.DoubleQuoteType
		return &node{kind: scalar, text: n.Value, quoted: quoted, at: c.at(n.GetToken())}
	case *ast.LiteralNode:
		return &node{kind: scalar, text: n.Value.Value, quoted: true, at: c.at(n.GetToken())}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		// Keep the text: every setting parses its own values.
		return &node{kind: scalar, text: n.GetToken().Value, at: c.at(n.GetToken())}
	case *ast.MappingNode:
		m := &node{kind: mapping, at: c.at(n.GetToken())}
		for _, v := range n.Values {
			c.entry(m, v)
		}
		if !n.IsFlowStyle && len(m.entries) > 0 {
			m.at = m.entries[0].key.at
		}
		return m
	case *ast.MappingValueNode:
		m := &node{kind: mapping}
		c.entry(m, n)
		m.at = m.entries[0].key.at
		return m
	case *ast.SequenceNode:
		l := &node{kind: list, at: c.at(n.GetToken())}
		for _, v := range n.Values {
			if address := c.adjacent(v); address != nil {
				l.items = append(l.items, address)
			} else {
				l.items = append(l.items, c.convert(v))
			}
		}
		return l
	case *ast.AnchorNode, *ast.AliasNode:
		return c.fail(n, "YAML anchors and aliases are not supported", "write the value out, or put it under defaults")
	case *ast.TagNode:
		return c.fail(n, "YAML tags are not supported", "remove the tag")
	}
	return c.fail(n, fmt.Sprintf("a YAML %s is not supported here", strings.ToLower(n.Type().String())),
		"write plain keys and values")
}

// adjacent reads an item such as host:6000 in a bracketed list. A colon without
// a following space is part of a plain word (YAML 1.2.2, 7.3.3). Within braces,
// the parser takes it for a mapping's colon.
func (c *converter) adjacent(n ast.Node) *node {
	m, ok := n.(*ast.MappingNode)
	if ok && len(m.Values) == 1 && !m.IsFlowStyle {
		n = m.Values[0]
	}
	v, ok := n.(*ast.MappingValueNode)
	if !ok {
		return nil
	}
	key, value, colon := v.Key.GetToken(), v.Value.GetToken(), v.Start
	if key == nil || value == nil || colon == nil || colon.Position == nil || value.Position == nil ||
		key.Type == token.SingleQuoteType || key.Type == token.DoubleQuoteType ||
		value.Position.Line != colon.Position.Line || value.Position.Column != colon.Position.Column+1 {
		return nil
	}
	switch v.Value.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode:
		return &node{kind: scalar, text: key.Value + ":" + value.Value, at: c.at(key)}
	}
	return nil
}

func (c *converter) entry(m *node, v *ast.MappingValueNode) {
	var key *node
	switch k := v.Key.(type) {
	case *ast.MergeKeyNode:
		key = c.fail(k, "YAML merge keys are not supported", "write the values out, or put them under defaults")
	case ast.Node:
		key = c.convert(k)
	}
	if key.kind != scalar && c.fault == nil {
		c.fail(v.Key, "a key must be a plain word", "see docs/configuration.md for the keys")
	}
	m.entries = append(m.entries, entry{key, c.convert(v.Value)})
}
