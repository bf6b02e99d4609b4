package postgres

// PickOverdue is the sweep's query, for a look at its plan.
const PickOverdue = pickOverdue
