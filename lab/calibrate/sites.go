package calibrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"longhaul/internal/words/remedy"
	"longhaul/lab"
	"longhaul/lab/link"
	"longhaul/lab/progress"
)

// tcpDuring is how long TCP's goodput is measured in the steady state.
const tcpDuring = 10 * time.Second

// TwoSites builds two sites and measures the WAN between them against its
// conditions. The process must be inside a sandbox.
func TwoSites(ctx context.Context, conditions lab.Conditions, report progress.Reporter) (Rows, error) {
	built, err := lab.Build(lab.TwoSites(conditions))
	if err != nil {
		return nil, err
	}
	defer built.Close()
	path := Path{
		Link: built.Link(lab.WAN),
		A:    Host{Addr: lab.WANA, Run: built.Host("relay-a").Do},
		B:    Host{Addr: lab.WANB, Run: built.Host("relay-b").Do},
	}
	report.Notef("measuring RTT, rate and loss, about 30 s")
	rows, err := path.All(ctx)
	if err != nil {
		return nil, err
	}
	if path.Link.Settings(link.AToB).RateBps > 0 {
		report.Notef("filling the link with TCP, about 15 s")
		row, err := path.TCP(ctx, link.AToB, tcpDuring)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Rows are the properties of a link.
type Rows []Row

// WriteText prints a line for each property.
func (rows Rows) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\twhat\tasked\tgot\n")
	for _, row := range rows {
		verdict := "ok"
		if !row.OK {
			verdict = "NO"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", verdict, row.What, row.Asked, row.Got)
	}
	return table.Flush()
}

// Judge says whether each property is as asked.
func (rows Rows) Judge() error {
	for _, row := range rows {
		if !row.OK {
			return remedy.New(errors.New("the link is not what was asked"), "run it again on an otherwise idle machine")
		}
	}
	return nil
}
