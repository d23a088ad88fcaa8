package units

import "testing"

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want Size // -1: refused
	}{
		{"16MiB", 16 << 20}, {"16MB", 16e6}, {"1460", 1460}, {"1460B", 1460}, {"0", 0}, {"1.5KiB", 1536}, {"2GiB", 2 << 30}, {"4kB", 4000},
		{"16M", 16 << 20}, {"64k", 64 << 10}, {"1.5G", 3 << 29},
		{"", -1}, {"MiB", -1}, {"M", -1}, {"16Mb", -1}, {"16 MiB", -1}, {"-1", -1}, {"99999999999999999999", -1}, {"9223372036854775807KiB", -1}, {"16mib", -1},
	}
	for _, tt := range tests {
		got, err := ParseSize(tt.in)
		if err != nil {
			got = -1
		}
		if got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for got, want := range map[string]string{
		FormatSize(0): "0 B", FormatSize(500): "500 B", FormatSize(1536): "1.5 KiB", FormatSize(24 << 20): "24 MiB",
		FormatSize(47250000): "45.1 MiB", FormatSize(900 << 20): "900 MiB", FormatSize(3 << 40): "3 TiB",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
