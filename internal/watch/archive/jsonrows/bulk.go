package jsonrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"longhaul/internal/watch/archive"
	"longhaul/internal/words/remedy"
)

// appendAction appends the line before a row for OpenSearch's _bulk. A row that is there already is not made again.
func appendAction(text []byte, row *archive.Row) []byte {
	id := row.Relay + "-" + strconv.FormatInt(row.Epoch, 10) + "-" + strconv.FormatInt(row.ID, 10)
	text = append(text, `{"create":{"_id":`...)
	return append(appendString(text, id), "}}\n"...)
}

// bulkItem is what OpenSearch says of one row.
type bulkItem struct {
	Status int `json:"status"`
	Error  struct {
		Type   string `json:"type"`
		Reason string `json:"reason"`
	} `json:"error"`
}

// readBulk reads the answer to n rows. Status 200 says nothing of them.
func (e *endpoint) readBulk(response *http.Response, n int) error {
	var answer struct {
		Errors *bool                 `json:"errors"`
		Items  []map[string]bulkItem `json:"items"`
	}
	err := json.NewDecoder(io.LimitReader(response.Body, maxBulkAnswer)).Decode(&answer)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax), errors.As(err, &kind), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		err == nil && (answer.Errors == nil || len(answer.Items) != n):
		return remedy.New(fmt.Errorf("the answer of %s is not that of _bulk to %d records", e.url.Host, n),
			"name the URL of an index in OpenSearch, like https://search.example.net:9200/flows/_bulk")
	case err != nil:
		return e.failed(err)
	}
	for _, item := range answer.Items {
		for _, said := range item {
			// 409: the row came before.
			if said.Status/100 != 2 && said.Status != http.StatusConflict {
				return &refusal{
					host: e.url.Host, status: said.Status, kind: said.Error.Type,
					line: e.line(strings.TrimPrefix(said.Error.Type+": "+said.Error.Reason, ": ")),
				}
			}
		}
	}
	return nil
}
