package digits

import "errors"

// ErrBatch: pictures and labels do not match in number, a label is above 9, a
// pixel is outside 0 to 1, or an index is outside the set. No parameter was
// changed; drop the batch.
var ErrBatch = errors.New("digits: bad batch")

// ErrModel: a parameter slice has the wrong length. Make them as Params says.
var ErrModel = errors.New("digits: bad model")

// ErrDiverged: the parameters give a loss that is not a finite number. The step
// was not taken. Call Model.Init and train with a smaller rate.
var ErrDiverged = errors.New("digits: training diverged")
