package config

import "strconv"

// codePoints maps names to DSCP values: RFC 2474 (CSx), RFC 2597 (AFxx), RFC
// 3246 (EF), RFC 5865 (VA), RFC 8622 (LE).
var codePoints = map[string]uint8{
	"cs0": 0, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56,
	"af11": 10, "af12": 12, "af13": 14,
	"af21": 18, "af22": 20, "af23": 22,
	"af31": 26, "af32": 28, "af33": 30,
	"af41": 34, "af42": 36, "af43": 38,
	"ef": 46, "va": 44, "le": 1,
}

// parseDSCP parses a code point by name or number.
func parseDSCP(s string) (uint8, bool) {
	if v, ok := codePoints[s]; ok {
		return v, true
	}
	v, err := strconv.ParseUint(s, 10, 8)
	return uint8(v), err == nil && v <= 63
}

func (d *decoder) dscp(n *node, key string) (*uint8, bool) {
	s, ok := d.text(n, key)
	if !ok {
		return nil, false
	}
	v, ok := parseDSCP(s)
	if !ok {
		d.errorf(n, "use a number from 0 to 63, or a name such as ef, af21 or cs1", "%s cannot be %q", key, s)
		return nil, false
	}
	return &v, true
}
