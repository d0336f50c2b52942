//! The shape of an array.

use std::fmt;
use std::ops::Deref;

/// Axes that take no heap.
const FEW: usize = 4;

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
/// assert_eq!(Shape::from([2; 5]).elements(), Some(32));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Axes);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Axes {
    /// The first `count` of these; the others are 1.
    Few { count: u8, axes: [usize; FEW] },
    /// More than that.
    Many(Box<[usize]>),
}

impl Shape {
    #[inline]
    fn of(given: &[usize]) -> Self {
        let (mut axes, count) = ([1; FEW], u8::try_from(given.len()));
        match (count, axes.get_mut(..given.len())) {
            (Ok(count), Some(first)) => {
                first.copy_from_slice(given);
                Self(Axes::Few { count, axes })
            }
            _ => Self(Axes::Many(given.into())),
        }
    }

    /// Returns the number of all elements; `None` if it exceeds `isize::MAX`, as if no axis was 0.
    #[inline]
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        match &self.0 {
            Axes::Few { axes, .. } => checked_product(axes),
            Axes::Many(axes) => checked_product(axes),
        }
    }

    /// The number of all elements of an array that exists.
    #[inline]
    pub(super) fn product(&self) -> usize {
        match &self.0 {
            Axes::Few { axes, .. } => axes.iter().product(),
            Axes::Many(axes) => axes.iter().product(),
        }
    }

    /// Returns the number of the element at an index in row-major order, if there is one.
    pub(super) fn offset(&self, index: &[usize]) -> Option<usize> {
        if index.len() != self.len() || index.iter().zip(&**self).any(|(at, axis)| at >= axis) {
            return None;
        }
        Some(index.iter().zip(&**self).fold(0, |offset, (at, axis)| offset * axis + at))
    }
}

#[inline]
fn checked_product(axes: &[usize]) -> Option<usize> {
    // `ndarray` limits the product of the axes that are not 0, even if another axis is 0.
    let product =
        axes.iter().try_fold(1_usize, |product, axis| product.checked_mul((*axis).max(1)))?;
    isize::try_from(product).ok()?;
    Some(axes.iter().product())
}

impl Default for Shape {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl Deref for Shape {
    type Target = [usize];
    #[inline]
    fn deref(&self) -> &[usize] {
        match &self.0 {
            Axes::Few { count, axes } => axes.get(..usize::from(*count)).unwrap_or(axes),
            Axes::Many(axes) => axes,
        }
    }
}

impl From<usize> for Shape {
    #[inline]
    fn from(elements: usize) -> Self {
        Self::of(&[elements])
    }
}

impl<const AXES: usize> From<[usize; AXES]> for Shape {
    #[inline]
    fn from(axes: [usize; AXES]) -> Self {
        Self::of(&axes)
    }
}

impl<const AXES: usize> From<&[usize; AXES]> for Shape {
    #[inline]
    fn from(axes: &[usize; AXES]) -> Self {
        Self::of(axes)
    }
}

impl From<&[usize]> for Shape {
    #[inline]
    fn from(axes: &[usize]) -> Self {
        Self::of(axes)
    }
}

impl From<(usize, usize)> for Shape {
    #[inline]
    fn from((rows, columns): (usize, usize)) -> Self {
        Self::of(&[rows, columns])
    }
}

impl From<(usize, usize, usize)> for Shape {
    #[inline]
    fn from((planes, rows, columns): (usize, usize, usize)) -> Self {
        Self::of(&[planes, rows, columns])
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
