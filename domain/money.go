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

// minorDigits are the currencies whose minor unit is not a hundredth, from ISO 4217
// list one. x/text/currency follows CLDR, which shows two dozen currencies without the
// hundredths that they have in ISO 4217 (COP, IDR, PKR, RSD, …): an amount in minor
// units would come out a hundred times too large.
var minorDigits = map[Currency]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0,
	"RWF": 0, "UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
}

// Digits returns how many decimals a minor unit of the currency has: 2 for EUR, 0 for JPY.
func (c Currency) Digits() int {
	if digits, special := minorDigits[c]; special {
		return digits
	}
	return 2
}
