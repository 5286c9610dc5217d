"""Recording loops that others wrote: callbacks for Lightning, Hugging Face's Trainer and Accelerate, one file each."""
