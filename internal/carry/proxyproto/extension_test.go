package proxyproto

import (
	"testing"
)

func TestExtension(t *testing.T) {
	const id = "\x05\x00\x03abc"
	for name, tt := range map[string]struct{ header, want string }{
		"ipv4":             {v2(0x21, 0x11, block4+id), "abc"},
		"ipv6":             {v2(0x21, 0x21, block6+id), "abc"},
		"local":            {v2(0x20, 0x00, id), "abc"},
		"behind others":    {v2(0x21, 0x11, block4+"\x04\x00\x03\x00\x00\x00\x02\x00\x01x"+id), "abc"},
		"the first counts": {v2(0x21, 0x11, block4+id+"\x05\x00\x01x"), "abc"},
		"none":             {v2(0x21, 0x11, block4), ""},
		"empty":            {v2(0x21, 0x11, block4+"\x05\x00\x00"), ""},
		"cut":              {v2(0x21, 0x11, block4+"\x05\x00\x04abc"), ""},
		"behind one cut":   {v2(0x21, 0x11, block4+"\x02\xff\xff"+id), ""},
		"version 1":        {"PROXY TCP4 192.0.2.1 198.51.100.2 1234 6000\r\n", ""},
		"nothing":          {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(Extension([]byte(tt.header), UniqueID)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAppendExtension(t *testing.T) {
	for name, h := range map[string]Header{
		"ipv4": pair(2, "192.0.2.1:1234", "198.51.100.2:6000"), "ipv6": pair(2, "[2001:db8::1]:1", "[2001:db8::2]:2"), "local": {Version: 2, Local: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := AppendHeader(nil, 2, h)
			b = AppendExtension(AppendExtension(b, UniqueID, []byte("abc")), 0xe0, []byte("xy"))
			got, n, err := Parse(append(b, "payload"...))
			if err != nil || n != len(b) || got != h {
				t.Fatalf("parsed as %+v of %d bytes, %v; want %+v of %d", got, n, err, h, len(b))
			}
			if id, own := string(Extension(b, UniqueID)), string(Extension(b, 0xe0)); id != "abc" || own != "xy" {
				t.Errorf("the extensions are %q and %q", id, own)
			}
		})
	}
}

func FuzzExtension(f *testing.F) {
	f.Add([]byte(v2(0x21, 0x11, block4+"\x05\x00\x03abc")))
	f.Add([]byte(v2(0x20, 0x00, "\x02\xff\xff")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, n, err := Parse(b); err == nil {
			_ = Extension(b[:n], UniqueID)
		}
	})
}
