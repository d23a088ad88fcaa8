package congestion

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// LoadResult parses a stored result. found is false if the file does not exist.
func LoadResult(file string, into any) (found bool, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read a result: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("parse result %s, or remove it: %w", file, err)
	}
	return true, nil
}

// WriteFile writes a file in one step: a reader finds the one before, or all of it.
func WriteFile(file string, data []byte) error {
	if err := os.WriteFile(file+".part", data, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".part", file)
}
