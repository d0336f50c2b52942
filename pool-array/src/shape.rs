//! The shape of an array.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// The number of elements of each axis. Up to four axes take no heap.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
/// use bucketpool::array::Shape;
///
/// assert_eq!(*Shape::from([2, 3]), [2, 3]);
/// assert_eq!(Shape::from((2, 3)), Shape::from(&[2, 3][..]));
/// assert_eq!(Shape::from(6).elements(), Some(6));
/// assert_eq!(Shape::from([usize::MAX / 2, 2]).elements(), None);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// Returns the number of all elements; `None` if it exceeds `isize::MAX`, as if no axis was 0.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        // `ndarray` limits the product of the axes that are not 0, even if another axis is 0.
        let axes = self.0.iter().filter(|axis| **axis > 0);
        let product = axes.copied().try_fold(1_usize, usize::checked_mul)?;
        isize::try_from(product).ok()?;
        Some(if self.0.contains(&0) { 0 } else { product })
    }

    /// Returns the number of the element at an index in row-major order, if there is one.
    pub(super) fn offset(&self, index: &[usize]) -> Option<usize> {
        if index.len() != self.0.len() || index.iter().zip(&self.0).any(|(at, axis)| at >= axis) {
            return None;
        }
        Some(index.iter().zip(&self.0).fold(0, |offset, (at, axis)| offset * axis + at))
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<usize> for Shape {
    fn from(elements: usize) -> Self {
        Self::from([elements])
    }
}

impl<const AXES: usize> From<[usize; AXES]> for Shape {
    fn from(axes: [usize; AXES]) -> Self {
        Self(SmallVec::from_slice(&axes))
    }
}

impl<const AXES: usize> From<&[usize; AXES]> for Shape {
    fn from(axes: &[usize; AXES]) -> Self {
        Self(SmallVec::from_slice(axes))
    }
}

impl From<&[usize]> for Shape {
    fn from(axes: &[usize]) -> Self {
        Self(SmallVec::from_slice(axes))
    }
}

impl From<(usize, usize)> for Shape {
    fn from((rows, columns): (usize, usize)) -> Self {
        Self::from([rows, columns])
    }
}

impl From<(usize, usize, usize)> for Shape {
    fn from((planes, rows, columns): (usize, usize, usize)) -> Self {
        Self::from([planes, rows, columns])
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
