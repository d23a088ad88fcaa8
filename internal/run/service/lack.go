package service

import (
	"errors"

	"longhaul/internal/words/remedy"
)

// Lack is something that a configuration needs and this machine lacks.
type Lack struct {
	What   string `json:"what"` // a sentence: "tunnel main uses haul: needs BTF"
	Remedy string `json:"remedy,omitempty"`
	// Fatal: a part of the configuration cannot work.
	Fatal bool `json:"fatal"`
}

// refuse returns the error of the first lack with which the configuration cannot work.
func refuse(lacks []Lack) error {
	for _, l := range lacks {
		if l.Fatal {
			return remedy.New(errors.New(l.What), l.Remedy)
		}
	}
	return nil
}
