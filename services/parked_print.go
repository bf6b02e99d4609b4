package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"example.com/ordertimeout/infra/postgres"
	"example.com/ordertimeout/services/reconciler"
)

const (
	groupHeader  = "GROUP\tMESSAGES\tCONSUMER\tTYPE\tCLASS\tFIRST FAILED\tLAST FAILED\tERROR"
	parkedHeader = "ID\tSTATUS\tCONSUMER\tTYPE\tORDER\tCLASS\tATTEMPTS\tREPLAYS\tLAST FAILED\tERROR"
	runHeader    = "RUN\tSTATUS\tBY\tPICKED\tTOTAL\tWAITING\tSENT\tHANDLED\tFAILED AGAIN\tRESOLVED\tSKIPPED\tUNKNOWN"
	itemHeader   = "MESSAGE\tORDER\tOUTCOME\tREASON"
	auditHeader  = "AT\tWHO\tWHAT\tON\tMESSAGES\tOUTCOME\tDETAIL"
)

func groupLine(g reconciler.GroupJSON) string {
	return row(g.ID, g.Messages, g.Consumer, g.Type, g.Class, stamp(g.FirstFailedAt), stamp(g.LastFailedAt), firstLine(g.Error))
}

func parkedLine(m reconciler.ParkedSummaryJSON) string {
	return row(m.ID, m.Status, m.Consumer, m.Type, m.OrderID, m.Class, m.Attempts, m.Replays, stamp(m.LastFailedAt), firstLine(m.Error))
}

func runLine(r reconciler.RunJSON) string {
	return row(r.ID, r.Status, r.RequestedBy, r.Selection, r.Total, r.Waiting, r.Sent, r.Handled, r.FailedAgain, r.Resolved, r.Skipped, r.Unknown)
}

func itemLine(i reconciler.ItemJSON) string {
	return row(i.ParkedID, i.OrderID, i.Outcome, i.Reason)
}

func auditLine(e reconciler.AuditJSON) string {
	return row(stamp(e.At), e.Operator, e.Action, e.Subject, e.Messages, e.Outcome, firstLine(reconciler.DetailWords(e.Detail)))
}

func printParked(out io.Writer, v reconciler.ParkedJSON) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name string, value any) {
		if text := fmt.Sprint(value); text != "" {
			_, _ = fmt.Fprintf(table, "%s\t%s\n", name, text)
		}
	}
	line("id", v.ID)
	line("status", v.Status)
	line("reason", v.Reason)
	line("consumer", v.Consumer)
	line("type", v.Type)
	line("message", v.MessageID)
	line("order", v.OrderID)
	line("class", v.Class)
	line("attempts", v.Attempts)
	line("replays", v.Replays)
	line("first failed", stamp(v.FirstFailedAt))
	line("last failed", stamp(v.LastFailedAt))
	line("parked", stamp(v.ParkedAt))
	line("came from", fmt.Sprintf("queue %q, exchange %q, routing key %q", v.Queue, v.Exchange, v.RoutingKey))
	line("group", v.GroupID)
	line("earlier", v.PreviousID)
	line("later", v.NextID)
	for _, name := range slices.Sorted(maps.Keys(v.Headers)) {
		line("header "+name, v.Headers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(v.Story)) {
		line("story "+name, strings.ReplaceAll(v.Story[name], "\n", "\n\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nerror:\n%s\n\npayload (%s):\n%s\n", v.Error, v.Encoding, v.Payload)
	if err == nil && v.EditedPayload != "" {
		_, err = fmt.Fprintf(out, "\nedited payload, which a replay sends:\n%s\n", v.EditedPayload)
	}
	return err
}

func runWords(r postgres.Run) string {
	state := string(r.Status)
	if !r.Finished() && !r.WorkedOn {
		state += ", waits for a reconciler"
	}
	return fmt.Sprintf("run %s: %s: %d of %d settled (waiting %d, sent %d, handled %d, failed again %d, resolved %d, skipped %d, unknown %d)",
		r.ID, state, r.Settled(), r.Total, r.Waiting, r.Sent, r.Handled, r.FailedAgain, r.Resolved, r.Skipped, r.Unknown)
}

// printAll prints a list as a table, or as one JSON array.
func printAll[T, V any](out io.Writer, asJSON bool, all []T, show func(T) V, header string, line func(V) string) error {
	views := make([]V, len(all))
	for i, one := range all {
		views[i] = show(one)
	}
	if asJSON {
		return printJSON(out, views)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, header)
	for _, v := range views {
		_, _ = fmt.Fprintln(table, line(v))
	}
	return table.Flush()
}

func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

func row(cells ...any) string {
	texts := make([]string, len(cells))
	for i, c := range cells {
		if texts[i] = fmt.Sprint(c); texts[i] == "" {
			texts[i] = "-"
		}
	}
	return strings.Join(texts, "\t")
}

// firstLine is what a table shows of a text. It stands last in its row, so its length
// moves nothing.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.ReplaceAll(line, "\t", " ")
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
