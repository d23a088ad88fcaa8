package examine

import (
	"errors"
	"slices"

	"longhaul/internal/find/doctor"
)

// Apply applies the remedies of a report that longhaul can apply on this host and
// that confirm accepts: run runs longhaul with arguments, and claims what it changes
// for doctor. It ends at the first failure.
func Apply(report doctor.Report, confirm func(doctor.Remedy) bool, run func(args []string) error) error {
	remedies := slices.DeleteFunc(slices.Clone(report.Remedies), func(r doctor.Remedy) bool { return len(r.Apply) == 0 })
	if len(remedies) == 0 {
		return errors.New("longhaul can apply none of the remedies on this host")
	}
	for _, r := range remedies {
		if !confirm(r) {
			continue
		}
		if err := run(r.Apply); err != nil {
			return err
		}
	}
	return nil
}
