package units

import "fmt"

// FormatRate writes bits per second for people, with three digits: "1 Gb/s", "45.3 Mb/s".
func FormatRate(bps float64) string {
	return scaled(bps, 1000, []string{"b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"})
}

// FormatSize writes bytes for people, with three digits: "24 MiB", "1.5 KiB".
func FormatSize(bytes float64) string {
	return scaled(bytes, 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
}

func scaled(v, base float64, names []string) string {
	k := 0
	for v >= base && k < len(names)-1 {
		v /= base
		k++
	}
	if v >= 100 || k == 0 {
		return fmt.Sprintf("%.0f %s", v, names[k])
	}
	return fmt.Sprintf("%.3g %s", v, names[k])
}
