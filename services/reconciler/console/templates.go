package console

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"example.com/ordertimeout/domain"
	"example.com/ordertimeout/services/reconciler"
)

// parseTemplates returns one set a page: the layout with that page's content.
func parseTemplates() (map[string]*template.Template, error) {
	layout, err := template.New("layout").Funcs(functions).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	pages := map[string]*template.Template{}
	for _, name := range []string{"signin", "pipeline", "orders", "order", "parked", "message", "runs", "run", "audit", "error"} {
		set, err := layout.Clone()
		if err == nil {
			set, err = set.ParseFS(files, "templates/"+name+".html")
		}
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		pages[name] = set
	}
	return pages, nil
}

// functions write values as people read them.
var functions = template.FuncMap{
	"utc":      func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"ago":      func(t time.Time) string { return span(time.Since(t)) + " ago" },
	"span":     span,
	"seconds":  func(s float64) string { return span(time.Duration(s * float64(time.Second))) },
	"delay":    domain.DelayName,
	"money":    money,
	"count":    count,
	"rate":     perSecond,
	"change":   change,
	"short":    func(id any) string { s := fmt.Sprint(id); return s[max(0, len(s)-8):] },
	"line":     firstLine,
	"words":    func(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", " ") },
	"detail":   reconciler.DetailWords,
	"lines":    func(text string) bool { return strings.Contains(text, "\n") },
	"percent":  func(part, whole int) int { return part * 100 / max(1, whole) },
	"negative": func(d time.Duration) bool { return d < 0 },
	"dict":     dict,
	"fields":   fields,
	"all":      everything,
}

// span writes a length of time in its largest unit, with one more where it matters.
func span(d time.Duration) string {
	d = d.Abs()
	switch {
	case d < time.Second:
		return "0 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// money writes minor units with the currency's decimals.
func money(minor int64, c domain.Currency) string {
	digits := c.Digits()
	text := fmt.Sprintf("%0*d", digits+1, minor)
	if digits > 0 {
		text = text[:len(text)-digits] + "." + text[len(text)-digits:]
	}
	return text + " " + string(c)
}

// count writes a whole number with thin spaces between its thousands.
func count(n any) string {
	text := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return sign + text
}

func perSecond(r float64) string {
	if r < 10 {
		return fmt.Sprintf("%.1f/s", r)
	}
	return count(int(math.Round(r))) + "/s"
}

// change writes how fast a queue grows or shrinks; what is almost still says nothing.
func change(r float64) string {
	switch {
	case r >= 0.05:
		return "▲ " + perSecond(r)
	case r <= -0.05:
		return "▼ " + perSecond(-r)
	default:
		return ""
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// dict lets a template pass several values to a part of itself.
func dict(pairs ...any) (map[string]any, error) {
	values := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is no name", pairs[i])
		}
		values[name] = pairs[i+1]
	}
	return values, nil
}

// fields are names and values of hidden inputs.
func fields(pairs ...string) [][2]string {
	var all [][2]string
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, [2]string{pairs[i], pairs[i+1]})
	}
	return all
}

// everything is what a form needs to work on all that a filter picks.
func everything(f filterForm) [][2]string {
	if set := f.Hidden(); len(set) > 0 {
		return set
	}
	return fields("all", "1")
}
