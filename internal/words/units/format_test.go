package units

import "testing"

func TestFormat(t *testing.T) {
	for got, want := range map[string]string{
		FormatSize(0): "0 B", FormatSize(500): "500 B", FormatSize(1536): "1.5 KiB", FormatSize(24 << 20): "24 MiB",
		FormatSize(47250000): "45.1 MiB", FormatSize(900 << 20): "900 MiB", FormatSize(3 << 40): "3 TiB",
		FormatRate(1e9): "1 Gb/s", FormatRate(2.5e9): "2.5 Gb/s", FormatRate(45_000_000): "45 Mb/s",
		FormatRate(9600): "9.6 kb/s", FormatRate(300): "300 b/s", FormatRate(123_456_789): "123 Mb/s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
