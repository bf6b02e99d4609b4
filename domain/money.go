package domain

// Currency is an ISO 4217 code. The domain checks its form; the edge that takes
// input checks that the code exists.
type Currency string

// ParseCurrency returns a FieldError unless text is three upper-case letters.
func ParseCurrency(text string) (Currency, error) {
	ok := len(text) == 3
	for _, r := range text {
		ok = ok && r >= 'A' && r <= 'Z'
	}
	if !ok {
		return "", &FieldError{Field: "currency", Got: clip(text, 16), Allowed: "an ISO 4217 code of three upper-case letters"}
	}
	return Currency(text), nil
}
