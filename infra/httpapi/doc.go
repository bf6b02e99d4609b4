// Package httpapi is what the HTTP interfaces of all services have in common: calls with
// typed bodies, problem details for every error, an operator's token, the access log and
// metrics, and an OpenAPI document with a page to browse it.
//
// A service describes each call once; what it documents is what it answers:
//
//	func addGet(api *httpapi.API) {
//		httpapi.Add(api, httpapi.Call[getInput, getOutput]{
//			Op: huma.Operation{
//				OperationID: "getThing", Method: http.MethodGet, Path: "/v1/things/{id}", Tags: []string{"Things"},
//				Summary: "Look up a thing", Description: "Shows the thing as it stands.",
//			},
//			Operator: true,
//			Do:       get, // func(context.Context, *getInput) (*getOutput, error)
//			Response: thingJSON{ID: "t-1"},
//			Refusals: []httpapi.Refusal{{When: "No thing has this id.", Err: errNoThing}},
//		})
//	}
//
//	api, err := httpapi.New(httpapi.Config{Title: "Things", OperatorToken: token, Problem: problemFor, Log: log, Metrics: registry}, addGet)
//
// Do returns errors of the domain as they are. problemFor turns those that only this
// service knows into a Problem; the table in problem.go knows the rest.
package httpapi
