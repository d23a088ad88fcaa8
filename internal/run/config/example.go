package config

import _ "embed"

// Example is a commented configuration that loads as it is.
//
//go:embed example.yaml
var Example []byte
