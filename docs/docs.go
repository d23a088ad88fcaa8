// Package docs has the pages that the packages ship, and of which the program makes
// manual pages.
package docs

import "embed"

// Pages are all pages, by their path below docs/.
//
//go:embed *.md design/*.md
var Pages embed.FS

// Configuration is configuration.md.
//
//go:embed configuration.md
var Configuration string
