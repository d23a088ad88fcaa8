// Package docs has the pages of which the program makes manual pages.
package docs

import _ "embed"

// Configuration is configuration.md.
//
//go:embed configuration.md
var Configuration string

// Metrics is metrics.md, which alerts name as their runbook.
//
//go:embed metrics.md
var Metrics []byte
