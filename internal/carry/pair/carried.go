package pair

import "longhaul/internal/carry/flow"

var (
	_ flow.Carrier = (*Link)(nil)
	_ flow.Carried = (*Flow)(nil)
)
