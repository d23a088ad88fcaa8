package examine

import (
	"encoding/json"
	"fmt"
	"os"

	"longhaul/internal/doctor"
	"longhaul/internal/remedy"
)

// WriteRecord saves an observation in a file, for [ReadRecord].
func WriteRecord(path string, o doctor.Observation) error {
	b, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("save the observation: %w", err)
	}
	return nil
}

// ReadRecord reads an observation that [WriteRecord] has saved.
func ReadRecord(path string) (o doctor.Observation, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(b, &o); err != nil || len(o.Samples) == 0 && o.Pair == nil {
		return o, remedy.New(fmt.Errorf("%s is not an observation of longhaul doctor", path),
			"longhaul doctor --record FILE makes one")
	}
	return o, nil
}
