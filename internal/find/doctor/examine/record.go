package examine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"longhaul/internal/find/doctor"
	"longhaul/internal/words/remedy"
)

// WriteRecord saves an observation in a file, for [ReadRecord].
func WriteRecord(path string, o doctor.Observation) error {
	if len(o.Samples) > maxRecordSamples {
		return tooLong(path)
	}
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
	file, err := os.Open(path)
	if err != nil {
		return o, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxRecordBytes+1))
	if err != nil {
		return o, err
	}
	var r struct {
		doctor.Observation
		Samples samples `json:"samples"` // in place of the observation's
	}
	err = json.Unmarshal(b, &r)
	if len(b) > maxRecordBytes {
		err = errLongRecord
	}
	if errors.Is(err, errLongRecord) {
		return o, tooLong(path)
	}
	o = r.Observation
	o.Samples = r.Samples
	if err != nil || len(o.Samples) == 0 && o.Pair == nil {
		return doctor.Observation{}, remedy.New(fmt.Errorf("%s is not an observation of longhaul doctor", path),
			"longhaul doctor --record FILE makes one")
	}
	return o, nil
}

// The bounds of a record: some hours of watching. A sample has some 1100 bytes, and an
// empty one, which somebody else may write, has 3.
const (
	maxRecordBytes   = 256 << 20
	maxRecordSamples = 1 << 17
)

func tooLong(path string) error {
	return remedy.New(fmt.Errorf("%s: %w", path, errLongRecord), "watch for a shorter --time")
}

var errLongRecord = fmt.Errorf("the record has more than %d samples or %d MiB", maxRecordSamples, maxRecordBytes>>20)

// samples are decoded one by one, up to a bound.
type samples []doctor.Sample

// UnmarshalJSON decodes a list.
func (s *samples) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	if bracket, err := decoder.Token(); err != nil || bracket != json.Delim('[') {
		return errors.New("samples that are no list")
	}
	for decoder.More() {
		if len(*s) == maxRecordSamples {
			return errLongRecord
		}
		var one doctor.Sample
		if err := decoder.Decode(&one); err != nil {
			return err
		}
		*s = append(*s, one)
	}
	return nil
}
