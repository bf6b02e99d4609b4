package main

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// The pictures stand on white, so that they can be read in a dark page too.
var (
	ink    = color.RGBA{0x24, 0x29, 0x2f, 0xff}
	ours   = color.RGBA{0x24, 0x63, 0xeb, 0xff}
	others = color.RGBA{0xa8, 0xb3, 0xc4, 0xff}
)

// plot draws drain.png and steady.png.
func (r *report) plot(dir string) error {
	var errs []error
	if len(r.Drains) > 0 {
		bars := map[string]float64{}
		for _, d := range r.Drains {
			if d.SKUs == manySKUs {
				bars[d.Way] = d.Rate
			}
		}
		errs = append(errs, drawBars(filepath.Join(dir, "drain.png"), fmt.Sprintf("Orders closed a second, %d due at once", r.Orders), bars))
	}
	if len(r.Steady) > 0 {
		bars := map[string]float64{}
		for _, s := range r.Steady {
			bars[s.Way] = s.P99 * 1000
		}
		errs = append(errs, drawBars(filepath.Join(dir, "steady.png"), fmt.Sprintf("Lateness, 99th percentile in ms, %d due a second", steadyRate), bars))
	}
	return errors.Join(errs...)
}

// drawBars draws one bar a way, the longest on top, with its number.
func drawBars(file, title string, bars map[string]float64) error {
	names := make([]string, 0, len(bars))
	for name := range bars {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(bars[a], bars[b]) })
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Color = ink
	p.Title.Padding = vg.Points(8)
	p.BackgroundColor = color.White
	p.X.Min = 0
	labels := plotter.XYLabels{}
	var longest float64
	for i, name := range names {
		bar, err := plotter.NewBarChart(plotter.Values{bars[name]}, vg.Points(16))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(i), 0
		bar.Color = others
		if name == nameProduct {
			bar.Color = ours
		}
		p.Add(bar)
		longest = max(longest, bars[name])
		labels.XYs = append(labels.XYs, plotter.XY{X: bars[name], Y: float64(i)})
		labels.Labels = append(labels.Labels, fmt.Sprintf(" %.0f", bars[name]))
	}
	numbers, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range numbers.TextStyle {
		numbers.TextStyle[i].YAlign = -0.4
	}
	p.Add(numbers)
	p.NominalY(names...)
	p.X.Max = longest * 1.12
	return p.Save(vg.Points(620), vg.Points(60+28*float64(len(names))), file)
}
