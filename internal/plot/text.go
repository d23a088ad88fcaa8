package plot

import (
	"encoding/xml"
	"strconv"
	"strings"
)

// textWidth estimates the width in pixels of text in a usual sans-serif font,
// a wide one such as DejaVu Sans: layout needs it, and no font is at hand.
func textWidth(s string, size float64) float64 {
	width := 0.0
	for _, r := range s {
		switch {
		case strings.ContainsRune("ijltfrI.,:;|!'()[] ", r):
			width += 0.36
		case strings.ContainsRune("mwMW@%", r):
			width += 0.95
		case r >= 'A' && r <= 'Z':
			width += 0.72
		default:
			width += 0.62
		}
	}
	return width * size
}

// wrap breaks text into lines of at most that many pixels.
func wrap(text string, size, width float64) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case textWidth(line+" "+word, size) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// coord writes a coordinate: a tenth of a pixel is as fine as anyone sees.
func coord(v float64) string {
	s := strconv.FormatFloat(v, 'f', 1, 64)
	s = strings.TrimSuffix(s, ".0")
	if s == "-0" {
		return "0"
	}
	return s
}

func escape(s string) string {
	var b strings.Builder
	// A strings.Builder refuses no write.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
